"""Samples that are prepared on devices next to the learner, with parameters that may be some gradient steps old."""

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, LearnerState, ReplayAgent, Sample
from envpool_bridge.errors import WaitTimeoutError
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.machine.devices import Device
from jaxsrl.machine.waits import wait_for_result
from jaxsrl.replay.on_device import step_keys, transform_sample


class SamplePreparer:
    """`Replay.transforms` as a program of its own, on each device in a thread. Samples return in the order of requests.

    Which parameters prepare a sample depends on counts, never on timing: see `HostReplay`. Thread-safety: one thread.

    Args:
        agent: Agent whose transforms are applied.
        devices: take turns, a sample each.
        run_key: the number of updates is folded into it.
        lag: gradient steps by which the parameters of a sample may be behind.
        timeout_seconds: longest wait for a sample.

    Attributes:
        lag: see above.
        waited_seconds: time spent in `get`.
    """

    def __init__(
        self, agent: ReplayAgent, devices: Sequence[Device], run_key: Array, lag: int, timeout_seconds: float = 600.0
    ) -> None:
        self.lag, self.waited_seconds = lag, 0.0
        self._agent, self._devices = agent, tuple(devices)
        self._run_key = np.asarray(jax.random.key_data(run_key))  # on no device
        self._timeout, self._num_requests = timeout_seconds, 0
        self._busy = [0.0] * len(self._devices)  # each written by one thread
        self._threads = [ThreadPoolExecutor(1, f"prepare-{number}") for number in range(len(self._devices))]
        self._requests: deque[Future[Sample]] = deque()
        self._prepare = jax.jit(self._transform, compiler_options=compiler_options(devices[0].platform))

    def request(self, sample: Sample, state: LearnerState, update: np.int32, number: int) -> None:
        """Requests that a sample is prepared for gradient step `number` of an update, with this state.

        What transforms need of the state is copied before the return, so that it may be donated.
        """
        place = self._num_requests % len(self._devices)
        self._num_requests += 1
        device = self._devices[place]
        known = jax.device_put(dataclasses.replace(state, opt_state=()), device, may_alias=False)

        def prepare() -> Sample:
            start = time.perf_counter()
            placed = jax.device_put(sample, device)
            prepared = jax.block_until_ready(self._prepare(known, placed, update, np.int32(number)))
            self._busy[place] += time.perf_counter() - start
            return prepared

        self._requests.append(self._threads[place].submit(prepare))

    def get(self) -> Sample:
        """Returns the oldest requested sample, on the device that prepared it.

        Raises:
            WaitTimeoutError: If it is not ready in time.
        """
        start = time.perf_counter()
        try:
            return wait_for_result(self._requests.popleft(), self._timeout)
        except TimeoutError as error:
            raise WaitTimeoutError(
                f"expected a prepared sample within {self._timeout:g} s: check whether the preparing devices still compute"
            ) from error
        finally:
            self.waited_seconds += time.perf_counter() - start

    def busy_seconds(self) -> float:
        """Returns the mean seconds that a device has prepared samples."""
        return sum(self._busy) / len(self._busy)

    def close(self) -> None:
        """Stops the threads after what they compute; idempotent."""
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)

    def _transform(self, state: LearnerState, sample: Sample, update: Array, number: Array) -> Sample:
        run_key = jax.random.wrap_key_data(jnp.asarray(self._run_key))
        keys = step_keys(self._agent, jax.random.fold_in(run_key, update), number)
        return transform_sample(self._agent, state, sample, keys.transforms)
