"""A parameter server that applies gradients in order of arrival, and drops those that are too stale. A3C's arrangement.

Source: Mnih et al. 2016 (arXiv:1602.01783); bounded staleness: Ho et al. 2013 (Stale Synchronous Parallel).
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import GradientSteps, LearnerState, Metrics, Params, Progress
from jaxsrl.learner.parameter_server.packed_tree import Block
from jaxsrl.learner.parameter_server.synchronous import ServerPrograms
from jaxsrl.machine.devices import Device


class Pulled(NamedTuple):
    """Newest parameters, on the server's device. They are never donated.

    Attributes:
        version: Gradient steps that this server had taken; a gradient at these parameters is pushed with it.
        params: Parameters, packed.
        extra: `LearnerState.extra`.
    """

    version: int
    params: Block
    extra: Any


@dataclasses.dataclass(frozen=True)
class ServerCounters:
    """Totals since the server was made; pushes are `applied + dropped`.

    Attributes:
        applied: Gradients taken.
        dropped: Gradients that were older than the bound, and not applied.
        staleness_sum: Sum of the staleness of applied gradients, in gradient steps.
        staleness_max: Largest staleness of an applied gradient.
    """

    applied: int = 0
    dropped: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0

    def values(self) -> dict[str, float]:
        """Returns the metrics by name, for a record."""
        return {
            "server/applied_gradients": float(self.applied),
            "server/dropped_gradients": float(self.dropped),
            "server/staleness_mean": self.staleness_sum / self.applied if self.applied else 0.0,
            "server/staleness_max": float(self.staleness_max),
        }


class ParameterServer:
    """The one owner of parameters and optimizer state. Thread-safety: any number of replicas, one thread each.

    Two counts must not be confused. A *version* counts gradient steps, and staleness is a difference of versions.
    `num_updates`, which policy lag, checkpoints and the length of a run are measured in, is the number of trajectories that
    *every* replica has completed: one update is one trajectory of each, and a replica that is ahead does not advance it alone.
    So no replica's policy lag can exceed the run's bound, even where replicas differ in speed.

    The optimizer takes one step for each gradient applied, num_replicas times as many an update as a single learner takes. A
    learning-rate schedule counts the trajectories that the pushing replica has completed.

    Args:
        steps: The update in parts.
        state: State to continue from; its optimizer state is copied.
        device: Device of the server.
        num_replicas: Number of replicas that push, numbered from 0.
        max_staleness: Largest staleness of an applied gradient, in gradient steps; 0 takes only those of the newest parameters.
        on_update: Called with `num_updates` and the newest parameters after every update, in order, in the thread that completed
            it. The parameters are on the server's device and never donated. It must not call the server.
        timeout_seconds: Longest wait for another replica's call, the first of which compiles.

    Attributes:
        counters: Totals so far.
        num_replicas: Replicas that push.
        busy_seconds: Total time that replicas held the server, to apply a gradient or to end a trajectory.
    """

    def __init__(
        self,
        steps: GradientSteps,
        state: LearnerState,
        device: Device,
        num_replicas: int,
        max_staleness: int,
        on_update: Callable[[int, Params], None] = lambda num_updates, params: None,
        timeout_seconds: float = 120.0,
    ) -> None:
        self.busy_seconds = 0.0
        self._programs = ServerPrograms(steps, device)
        self._copy = jax.jit(lambda values: jax.tree.map(jnp.copy, values))
        self._device, self._max_staleness = device, max_staleness
        self._on_update, self._timeout_seconds = on_update, timeout_seconds
        self._changed = threading.Condition(threading.Lock())
        placed = jax.device_put(state, device)
        self._params, self._extra = self._programs.pack(placed.params), placed.extra
        self._opt_state = self._copy(placed.opt_state)
        self._num_skipped = [self._programs.nothing_skipped] * num_replicas
        self._is_finite = [self._programs.all_finite] * num_replicas
        self._version = 0
        self._num_updates = int(state.num_updates)
        self._numbers = [jax.device_put(np.int32(self._num_updates), device)] * num_replicas
        self._completed = [self._num_updates] * num_replicas
        self.counters, self.num_replicas = ServerCounters(), num_replicas

    def pull(self) -> Pulled:
        """Returns the newest parameters."""
        with self._locked():
            return Pulled(self._version, self._params, self._extra)

    def push(self, replica: int, version: int, grads: Block, metrics: Block) -> bool:
        """Takes a gradient, or drops and counts it.

        Args:
            replica: Number of the pushing replica.
            version: Version of the parameters that `grads` was computed at, as pulled.
            grads: Gradient. Its computation should be done, or the steps of other replicas wait for it.
            metrics: float32 scalars of the gradient.

        Returns:
            Whether it was taken.

        Raises:
            ValueError: `version` is newer than the server's.
        """
        grads, metrics = self._programs.receive((grads, metrics))
        with self._locked():
            start = time.perf_counter()
            staleness, counters = self._version - version, self.counters
            if staleness < 0:
                raise ValueError(f"a gradient of version {version} came to a server at version {self._version}")
            if staleness > self._max_staleness:
                self.counters = dataclasses.replace(counters, dropped=counters.dropped + 1)
                return False
            progress, is_finite = self._programs.apply(
                self._progress(replica), self._is_finite[replica], grads, metrics
            )
            self._params, self._opt_state = progress.params, progress.opt_state
            self._num_skipped[replica], self._is_finite[replica] = progress.num_skipped, is_finite
            self._version += 1
            self.counters = dataclasses.replace(
                counters,
                applied=counters.applied + 1,
                staleness_sum=counters.staleness_sum + staleness,
                staleness_max=max(counters.staleness_max, staleness),
            )
            self.busy_seconds += time.perf_counter() - start
            return True

    def complete(self, replica: int, prepared_metrics: Metrics, step_metrics: Sequence[Block]) -> Metrics:
        """Ends a replica's trajectory.

        Args:
            replica: Number of the replica.
            prepared_metrics: Summary of `GradientSteps.prepare`.
            step_metrics: float32 scalars of each of its gradients, dropped ones too.

        Returns:
            Metrics of the trajectory, on the server's device.
        """
        received = self._programs.receive((prepared_metrics, list(step_metrics)))
        with self._locked():
            start = time.perf_counter()
            programs, progress = self._programs, self._progress(replica)
            state = LearnerState(programs.unpack(self._params), self._opt_state, self._numbers[replica], self._extra)
            state, metrics = programs.finish(state, progress, self._is_finite[replica], *received)
            self._params, self._opt_state, self._extra = programs.pack(state.params), state.opt_state, state.extra
            self._numbers[replica], self._num_skipped[replica] = state.num_updates, programs.nothing_skipped
            self._is_finite[replica] = programs.all_finite
            self._completed[replica] += 1
            if min(self._completed) > self._num_updates:
                self._num_updates += 1
                self._on_update(self._num_updates, state.params)
                self._changed.notify_all()
            self.busy_seconds += time.perf_counter() - start
            return metrics

    def trajectories_completed(self, replica: int) -> int:
        """Returns the number of trajectories that this replica has completed, including those before a resume."""
        return self._completed[replica]

    def wait_update(self, after: int, timeout_seconds: float) -> int:
        """Returns `num_updates`, as soon as it exceeds `after` or `timeout_seconds` have passed."""
        with self._locked():
            self._changed.wait_for(lambda: self._num_updates > after, timeout_seconds)
            return self._num_updates

    def state(self) -> LearnerState:
        """Returns the current learner state, on the server's device; later pushes do not change it."""
        with self._locked():
            number = jax.device_put(np.int32(self._num_updates), self._device)
            params, opt_state = self._programs.unpack(self._params), self._copy(self._opt_state)
            return LearnerState(params, opt_state, number, self._extra)

    def _progress(self, replica: int) -> Progress:
        return Progress(self._params, self._opt_state, self._numbers[replica], self._num_skipped[replica])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._changed.acquire(timeout=self._timeout_seconds):
            raise TimeoutError(
                f"thread {threading.current_thread().name} waited {self._timeout_seconds:g} s for the parameter server, which "
                f"was held by another replica: its optimizer step does not end"
            )
        try:
            yield
        finally:
            self._changed.release()
