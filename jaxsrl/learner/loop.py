"""Learner loop: acquires a slot, updates, publishes parameters, releases the slot and records."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from agents.api import LearnerState, Metrics, Params
from envpool_bridge.shm.slots import SlotViews
from jaxsrl.collect.collector import Collector
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.mesh import KeyedUpdate, LearnerMesh
from jaxsrl.replay.state import replace_learned

WAIT_SECONDS = 0.2
ObserveSlots = Callable[[Sequence[SlotViews]], None]
"""Receiver of the full slots of a sequence, one per pool; in order of the sequences. The slots are valid during the call."""


@dataclasses.dataclass
class LearnerStats:
    """Totals since the learner started.

    Attributes:
        busy_seconds: Seconds from acquiring a slot to releasing it.
        lag_sum: policy lag, summed over updates (each the mean over its steps).
        lag_max: largest policy lag of any step.
        updates: done by this process.
        dropped: slots released without an update because a newer one was full, if the plan allows it. With recent trajectories,
            those that were used fewer times than allowed.
        reused: updates on a trajectory that was used before.
        skipped: updates that were skipped because they were not finite.
        skipped_span: updates since the first skipped one after the newest finite one; 0 if the newest one is finite.
        finite: updates with a gradient step that are known not to be skipped.
        unsaved: checkpoints that could not be written.
    """

    busy_seconds: float = 0.0
    lag_sum: float = 0.0
    lag_max: int = 0
    updates: int = 0
    dropped: int = 0
    reused: int = 0
    skipped: int = 0
    skipped_span: int = 0
    finite: int = 0
    unsaved: int = 0


class AnyLearner:
    """Base class of learners: what the training loop, records and reports see of one.

    Args:
        num_updates: updates so far.

    Attributes:
        state: newest learner state, on its devices.
        num_updates: updates in `state`.
        metrics: Metrics of the newest update, still on the device.
        stats: totals.
        too_many_nonfinite: whether as many consecutive updates were skipped as the run allows. `restore_learned` clears it.
        skipped_batch: file to which the batch of the last of them was written; None if it was not.
    """

    state: LearnerState

    def __init__(self, num_updates: int) -> None:
        self.num_updates = num_updates
        self.metrics: Metrics = {}
        self.stats = LearnerStats()
        self.too_many_nonfinite = False
        self.skipped_batch: Path | None = None

    def restore_learned(self, learned: LearnerState) -> None:
        """Replaces what was learned by that of an older state, and continues from it.

        Args:
            learned: parameters, optimizer and extras; its update count and experience are ignored.
        """
        raise NotImplementedError


class HostLearner(AnyLearner):
    """Base class of learners on trajectories of the host: `Learner`, and replicas with a parameter server.

    Attributes:
        published: newest published parameters.
        previous_params: published parameters one version older; None before there were any.
    """

    published: Params
    previous_params: Params

    def step(self, observe: ObserveSlots) -> bool:
        """Runs one update, or takes in one that replicas have done, if a short wait is enough for it.

        Args:
            observe: receives the slots, and those that are dropped, in their order.

        Returns:
            Whether there was an update.
        """
        raise NotImplementedError

    def totals(self) -> Mapping[str, float]:
        """Returns seconds and counts since the start, by metric name, that `stats` does not have."""
        return {}

    def waits(self) -> Sequence[str]:
        """Returns a sentence for each replica that says what it waits for. Any thread may call it; it never blocks."""
        return ()


class Learner(HostLearner):
    """Owner of the learner state. It starts from `state` and publishes its parameters. Thread-safety: one thread.

    While `too_many_nonfinite`, the newest version is not published; `restore_learned` does it.

    Args:
        mesh: Mesh to shard rows over.
        source: Source of trajectories; every new version is published to it.
        state: initial state.
        update: `mesh.jit_update` of an agent, or a counterpart such as `HostReplay`.
        previous_params: parameters one version older than `state`, already published to the source.
        drop_oldest: whether to train on the newest full slot, and to drop and count older ones.
        watch: Watch of non-finite updates; None for no watch.
    """

    def __init__(
        self,
        mesh: LearnerMesh,
        source: Collector,
        state: LearnerState,
        update: KeyedUpdate,
        previous_params: Params = None,
        drop_oldest: bool = False,
        watch: FiniteWatch | None = None,
    ) -> None:
        super().__init__(int(state.num_updates))
        self._mesh, self._source, self._update = mesh, source, update
        self._drop_oldest, self._watch = drop_oldest, watch
        self.state = mesh.place_state(state)
        self.published: Params = previous_params
        self.previous_params: Params = None
        self.publish()

    def publish(self) -> None:
        """Publishes the newest parameters in separate memory, since the next update donates the state."""
        self.previous_params, self.published = self.published, self._mesh.copy_params(self.state.params)
        self._source.publish(self.num_updates, self.published)

    def step(self, observe: ObserveSlots) -> bool:
        sequence = self._source.acquire(WAIT_SECONDS)
        if sequence is None:
            return False
        while self._drop_oldest and (newer := self._source.acquire(0.0)) is not None:
            observe(self._source.slots(sequence))
            self._source.drop(sequence)
            self.stats.dropped += 1
            sequence = newer
        start = time.perf_counter()
        self._learn(self._source.slots(sequence), observe)
        self._source.release(sequence)
        self.stats.busy_seconds += time.perf_counter() - start
        return True

    def _learn(self, slots: Sequence[SlotViews], observe: ObserveSlots | None = None) -> None:
        """Runs an update on slots, which may be released afterwards, and passes them to `observe`."""
        batch = self._mesh.place_batch(slots)
        self.state, self.metrics = self._update(self.state, batch)
        # The host's bookkeeping runs while the device computes.
        if observe is not None:
            observe(slots)
        self._measure_lag(slots)
        # On CPU the batch is the slot's own memory, so only the finished update proves that it has been read; elsewhere it
        # is a copy, and the slot is free as soon as that copy is made.
        jax.block_until_ready((self.state, self.metrics) if self._mesh.aliases_host else batch)
        if self._watch is not None:
            self.too_many_nonfinite = self._watch.observe(self.metrics, batch, wait=self._mesh.aliases_host)
            self._watch.count_in(self.stats)
            self.skipped_batch = self._watch.written
        del batch
        self.num_updates += 1
        if not self.too_many_nonfinite:  # otherwise actors would act with parameters that the learner has abandoned
            self.publish()
        self.stats.updates += 1

    def restore_learned(self, learned: LearnerState) -> None:
        self.state = self._mesh.place_state(replace_learned(self.state, learned))
        if self.too_many_nonfinite:
            self.too_many_nonfinite = False
            self.publish()

    def _measure_lag(self, slots: Sequence[SlotViews]) -> None:
        lag = self.num_updates - np.concatenate([slot.policy_version for slot in slots], axis=1)
        self.stats.lag_sum += float(np.mean(lag))
        self.stats.lag_max = max(self.stats.lag_max, int(lag.max()))
