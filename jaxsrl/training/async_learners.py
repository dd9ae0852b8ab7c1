"""Replicas that learn at their own pace, each in a thread with its own pool, and the parameter server they push to."""

import dataclasses
import threading
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, GradientSteps, LearnerState, Metrics, Params
from envpool_bridge.shm.slots import SlotViews, copy_slot
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.finite_watch import FiniteWatch, NotFiniteError
from jaxsrl.learner.loop import HostLearner, ObserveSlots
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.async_replica import AsynchronousReplica
from jaxsrl.learner.parameter_server.async_server import ParameterServer
from jaxsrl.machine.devices import Device
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.training.run_state import Progress

_WAIT_SECONDS = 0.2
MOST_AHEAD = 8
"""Updates that a replica may be ahead of those which `step` has returned; each keeps a copy of its slot."""


@dataclasses.dataclass(frozen=True)
class ReplicaSetup:
    """Devices of the replicas and of the server.

    Attributes:
        steps: the update, cut at its gradients.
        meshes: one a replica.
        device: Device of the server.
        max_staleness: gradient steps that a gradient may be behind.
        update_key: the run's key of updates.
        num_updates: Number of updates of the whole run; a replica returns after its trajectory of the last one.
        timeout_seconds: longest wait of a replica for another one's call of the server.
    """

    steps: GradientSteps
    meshes: Sequence[LearnerMesh]
    device: Device
    max_staleness: int
    update_key: Array
    num_updates: int
    timeout_seconds: float = 1800.0


class AsynchronousLearners(HostLearner):
    """Counterpart of `Learner`: an update is done when every replica has completed a trajectory.

    `metrics` are of the newest trajectory of any replica, on the server's device; an update was skipped if a trajectory of any
    replica was. `stats.busy_seconds` are means over replicas.
    """

    def __init__(
        self,
        setup: ReplicaSetup,
        source: PoolCollector,
        progress: Progress,
        lifecycle: Lifecycle,
        watch: FiniteWatch | None = None,
    ) -> None:
        super().__init__(int(progress.state.num_updates))
        self._source, self._lifecycle, self._watch = source, lifecycle, watch
        self.published, self.previous_params = progress.state.params, progress.previous_params
        source.publish(self.num_updates, jax.device_put(progress.state.params, setup.device))
        count = len(setup.meshes)
        self._server = ParameterServer(
            setup.steps,
            progress.state,
            setup.device,
            count,
            setup.max_staleness,
            self._publish,
            setup.timeout_seconds,
        )
        self._meshes, self._last = setup.meshes, setup.num_updates
        self._replicas = [
            AsynchronousReplica(setup.steps, mesh, self._server, index, setup.update_key)
            for index, mesh in enumerate(setup.meshes)
        ]
        self._state: LearnerState | None = None  # None until it is read after an update
        self._lock = threading.Condition()  # notified when a replica has noted its metrics, and after an update
        self._seen: dict[int, dict[int, SlotViews]] = {}  # by sequence and replica, until every replica is through
        self._skipped: dict[int, list[Metrics]] = {}  # `SKIPPED` of each replica's trajectory, by sequence
        self._started = False

    @property
    def state(self) -> LearnerState:  # pyright: ignore[reportIncompatibleVariableOverride]  the server has it
        """Returns the server's state, with the updates that `step` has returned.

        It is the same until `step` returns the next one, although replicas learn on: what a run saves, evaluates and reports of an
        update must not differ.
        """
        if self._state is None:
            self._state = dataclasses.replace(self._server.state(), num_updates=np.int32(self.num_updates))
        return self._state

    def step(self, observe: ObserveSlots) -> bool:
        # The first call starts the replicas.
        if not self._started:
            self._started = True
            for index in range(len(self._replicas)):
                self._lifecycle.start_thread(f"replica {index}", lambda index=index: self._learn(index))
        if self._server.wait_update(self.num_updates, _WAIT_SECONDS) <= self.num_updates:
            return False
        with self._lock:
            # The server completes an update just before the thread of the last replica notes its metrics.
            if not self._lock.wait_for(self._all_noted, _WAIT_SECONDS):
                return False
            slots, skipped = self._seen.pop(self.num_updates), self._skipped.pop(self.num_updates)
        observe([slots[index] for index in range(len(self._replicas))])
        self.num_updates += 1
        self._state = None
        self.stats.updates += 1
        counters = {name: jnp.float32(value) for name, value in self._server.counters.values().items()}
        # Of this update alone: the replicas may be several ahead.
        any_skipped = jax.tree.map(lambda *flags: jnp.stack(flags).max(), *skipped)
        with self._lock:
            self.metrics = metrics = {**self.metrics, **counters, **any_skipped}
            self._lock.notify_all()
        if self._watch is not None:
            # Not `self.metrics`: a replica that is ahead may have replaced it.
            self.too_many_nonfinite = self._watch.observe(metrics, (), wait=True)
            self.stats.skipped = self._watch.skipped
        return True

    def _all_noted(self) -> bool:
        return len(self._skipped.get(self.num_updates, ())) == len(self._replicas)

    def totals(self) -> dict[str, float]:
        """Returns seconds since the start that replicas waited, their mean, and that the server was held; and gradients pushed."""
        waited = self._source.totals()["learner/wait_seconds"] / len(self._replicas)
        pushed = float(self._server.counters.applied + self._server.counters.dropped)
        return {
            "learner/wait_seconds": waited,
            "server/busy_seconds": self._server.busy_seconds,
            "server/gradients": pushed,
        }

    def waits(self) -> list[str]:
        completed = map(self._server.trajectories_completed, range(len(self._replicas)))
        return [
            f"replica {index} has not completed its trajectory of update {count + 1}"
            for index, count in enumerate(completed)
            if count <= self.num_updates and count < self._last
        ]

    def restore_learned(self, learned: LearnerState) -> None:
        """Raises: replicas push at their own pace, and what they are computing cannot be called back.

        Raises:
            NotFiniteError: always.
        """
        del learned
        raise NotFiniteError(
            "asynchronous replicas cannot be rolled back: use --learner.gradients synchronous, or resume the run"
        )

    def _publish(self, num_updates: int, params: Params) -> None:
        self.previous_params, self.published = self.published, params
        self._source.publish(num_updates, params)

    def _learn(self, index: int) -> None:
        """Runs a replica, in its own thread."""
        source, mesh, replica = self._source, self._meshes[index], self._replicas[index]
        should_stop = self._lifecycle.should_stop
        while not should_stop() and self._server.trajectories_completed(index) < self._last:
            sequence = source.acquire_replica(index, _WAIT_SECONDS) if self._wait_turn(index) else None
            if sequence is None:
                continue
            start = time.perf_counter()
            slot = source.replica_slot(index, sequence)
            with self._lock:
                self._seen.setdefault(sequence, {})[index] = copy_slot(slot)
            metrics = replica.update(mesh.place_batch([slot]), should_stop)
            if metrics is None:
                return
            # Before the slot is given back: afterwards its versions may be those of a later sequence.
            self._measure(slot, sequence, metrics, time.perf_counter() - start)
            source.release_replica(index, sequence)

    def _wait_turn(self, index: int) -> bool:
        """Returns whether a replica may learn from its next trajectory; waits briefly while it is too far ahead."""

        def may_learn() -> bool:
            return self._server.trajectories_completed(index) < self.num_updates + MOST_AHEAD

        with self._lock:
            return self._lock.wait_for(may_learn, _WAIT_SECONDS)

    def _measure(self, slot: SlotViews, sequence: int, metrics: Metrics, seconds: float) -> None:
        count = len(self._replicas)
        lag = sequence - slot.policy_version
        with self._lock:
            self.metrics = {**self.metrics, **metrics}
            skipped = {name: value for name, value in metrics.items() if name.endswith(SKIPPED)}
            self._skipped.setdefault(sequence, []).append(skipped)
            self._lock.notify_all()
            self.stats.busy_seconds += seconds / count
            self.stats.lag_sum += float(np.mean(lag)) / count
            self.stats.lag_max = max(self.stats.lag_max, int(lag.max()))
