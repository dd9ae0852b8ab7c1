"""What happens between drawing and learning: augment, reanalyse, post-process (SRL's buffer worker), as steps that compose.

The same steps run inside the device's program (`Replay.prepare`, by `prepared`) or on threads of the host, one a step
(`SamplePipeline`). Both give the same samples: a step's key follows from the sample's key and the step's place, and parameters
travel with the sample, so that no thread's pace reaches the result.
"""

import threading
from collections.abc import Sequence

import jax

from agents.api import Array, Params, Sample, SampleFn
from envpool_bridge.errors import UserError, WaitTimeoutError
from jaxsrl.replay.bounded_queue import BoundedQueue
from jaxsrl.replay.rate_limiter import ReplayClosedError

_JOIN_SECONDS = 10.0
_IDLE_SECONDS = 1e6  # threads wait until there is work or they are closed; who puts and gets has the deadlines


def prepared(steps: Sequence[SampleFn], params: Params, sample: Sample, key: Array) -> Sample:
    """The sample after all steps, in order. Pure; key is consumed."""
    for place, step in enumerate(steps):
        sample = step(params, sample, jax.random.fold_in(key, place))
    return sample


class SamplePipeline:
    """Steps on threads of their own, which work on several samples at a time, in order. Thread-safety: any threads.

    A context manager: leaving it closes it and waits for its threads.
    """

    def __init__(self, steps: Sequence[SampleFn], capacity: int = 4) -> None:
        """Starts the threads.

        Args:
            steps: jitted here; in order.
            capacity: samples that may wait before each step, and behind the last.

        Raises:
            UserError: there is no step.
        """
        if not steps:
            raise UserError("a pipeline needs at least 1 step: got none; draw without a pipeline instead")
        self._queues: list[BoundedQueue] = [BoundedQueue(capacity) for _ in range(len(steps) + 1)]
        self._threads = [
            threading.Thread(target=self._run, args=(place, jax.jit(step)), name=f"prepare-{place}", daemon=True)
            for place, step in enumerate(steps)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> "SamplePipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, params: Params, sample: Sample, key: Array, timeout_seconds: float) -> None:
        """Hands in a sample to be prepared with these parameters; key is consumed.

        Raises:
            WaitTimeoutError: no room within `timeout_seconds`.
            ReplayClosedError: closed; its cause is the first error of a step, if there was one.
        """
        self._queues[0].put((params, sample, key), timeout_seconds)

    def get(self, timeout_seconds: float) -> Sample:
        """The next sample, in the order in which they were put. Raises as `put`; WaitTimeoutError if none is ready."""
        return self._queues[-1].get(timeout_seconds)[1]

    def close(self, error: BaseException | None = None) -> None:
        """Stops the threads; samples inside are lost. May be called again.

        Raises:
            WaitTimeoutError: a step did not end within 10 s.
        """
        for queue in self._queues:
            queue.close(error)
        for thread in self._threads:
            if thread is threading.current_thread():
                continue
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                raise WaitTimeoutError(
                    f"expected {thread.name} to end within {_JOIN_SECONDS:g} s: its step still computes; see that step"
                )

    def _run(self, place: int, step: SampleFn) -> None:
        try:
            while True:
                params, sample, key = self._queues[place].get(_IDLE_SECONDS)
                sample = step(params, sample, jax.random.fold_in(key, place))
                # Errors of the device show here, in the thread they belong to.
                jax.block_until_ready(sample)
                self._queues[place + 1].put((params, sample, key), _IDLE_SECONDS)
        except ReplayClosedError:
            pass
        except BaseException as error:  # noqa: BLE001 - the first error of any thread ends all, and reaches whoever waits
            for queue in self._queues:
                queue.close(error)
