"""The learner's loop: lease a slot, update, publish, give the slot back, record."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import jax
import numpy as np

from agents.api import LearnerState, Metrics, Params
from envpool_bridge.shm.slots import SlotViews, join_slots
from jaxsrl.collect.collector import Collector
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.mesh import KeyedUpdate, LearnerMesh
from jaxsrl.metrics.episodes import EpisodeTracker
from jaxsrl.replay.state import replace_learned

WAIT_SECONDS = 0.2


@dataclasses.dataclass
class LearnerStats:
    """Totals since the learner started.

    Attributes:
        busy_seconds: from leasing a slot to giving it back.
        lag_sum: policy lag, summed over updates (each the mean over its steps).
        lag_max: largest policy lag of any step.
        updates: done by this process.
        dropped: slots given back without an update, because a newer one was full; only where the plan says so. Of trajectories
            that are kept for a while (`recent`), those that were learned from less often than they might have been.
        reused: trajectories that were learned from again.
        skipped: updates that were left out because they were not finite.
        unsaved: checkpoints that could not be written.
    """

    busy_seconds: float = 0.0
    lag_sum: float = 0.0
    lag_max: int = 0
    updates: int = 0
    dropped: int = 0
    reused: int = 0
    skipped: int = 0
    unsaved: int = 0


class Learner:
    """Owner of the learner state. Thread-safety: one thread.

    Attributes:
        state: newest learner state, on the mesh.
        num_updates: updates that made it.
        metrics: of the newest update, still on the device.
        stats: totals.
        published: newest parameters that were published.
        previous_params: those one version older; None before there were any.
        too_many_nonfinite: whether the newest updates were left out, as many in a row as `watch` allows (`restore_learned` clears it).
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
        """A learner that continues from `state`, and publishes its parameters.

        Args:
            mesh: to shard rows over.
            source: of trajectories; told of every new version.
            state: to continue from.
            update: `mesh.jit_update` of an agent, or what stands in for it.
            previous_params: parameters one version older than `state`, which the source has been told of.
            drop_oldest: whether the newest full slot is learned from, and older ones are dropped and counted.
            watch: of updates that were left out; None looks at none.
        """
        self._mesh, self._source, self._update = mesh, source, update
        self._drop_oldest, self._watch = drop_oldest, watch
        self.too_many_nonfinite = False
        self.state = mesh.place_state(state)
        self.num_updates = int(state.num_updates)
        self.metrics: Metrics = {}
        self.stats = LearnerStats()
        self.published: Params = previous_params
        self.previous_params: Params = None
        self.publish()

    def publish(self) -> None:
        """Publishes the newest parameters; they never share memory with the state, which the next update donates."""
        self.previous_params, self.published = self.published, self._mesh.copy_params(self.state.params)
        self._source.publish(self.num_updates, self.published)

    def step(self, episodes: EpisodeTracker, log: EpisodeLog) -> bool:
        """Returns one update if a slot is full within a short wait.

        Args:
            episodes: told of the slot.
            log: told of the slot.

        Returns:
            Whether there was an update.
        """
        sequence = self._source.acquire(WAIT_SECONDS)
        if sequence is None:
            return False
        while self._drop_oldest and (newer := self._source.acquire(0.0)) is not None:
            slot = join_slots(self._source.slots(sequence))
            episodes.observe(slot)
            log.observe(slot)
            self._source.drop(sequence)
            self.stats.dropped += 1
            sequence = newer
        start = time.perf_counter()
        self._learn(self._source.slots(sequence), episodes, log)
        self._source.release(sequence)
        self.stats.busy_seconds += time.perf_counter() - start
        return True

    def _learn(
        self, slots: Sequence[SlotViews], episodes: EpisodeTracker | None = None, log: EpisodeLog | None = None
    ) -> None:
        """An update from slots, which may be given back afterwards; tells `episodes` and `log` of them."""
        batch = self._mesh.place_batch(slots)
        self.state, self.metrics = self._update(self.state, batch)
        # The host's bookkeeping runs while the device computes.
        slot = join_slots(slots)
        if episodes is not None and log is not None:
            episodes.observe(slot)
            log.observe(slot)
        self._measure_lag(slot)
        # On CPU the batch is the slot's own memory, so only the finished update proves that it has been read; elsewhere it
        # is a copy, and the slot is free as soon as that copy is made.
        jax.block_until_ready((self.state, self.metrics) if self._mesh.aliases_host else batch)
        if self._watch is not None:
            self.too_many_nonfinite = self._watch.observe(self.metrics, batch, wait=self._mesh.aliases_host)
            self.stats.skipped = self._watch.skipped
        del batch
        self.num_updates += 1
        self.publish()
        self.stats.updates += 1

    def restore_learned(self, learnt: LearnerState) -> None:
        """Takes in what an older state had learned; the next update goes on from it.

        Args:
            learnt: parameters, optimizer and what else the agent carries; its number and experience for replay do not count.
        """
        self.state = self._mesh.place_state(replace_learned(self.state, learnt))
        self.too_many_nonfinite = False

    def totals(self) -> Mapping[str, float]:
        """Returns no totals: `stats` has them all."""
        return {}

    def waits(self) -> Sequence[str]:
        """Returns no sentences: the main thread runs this learner."""
        return ()

    def _measure_lag(self, slot: SlotViews) -> None:
        lag = self.num_updates - slot.policy_version
        self.stats.lag_sum += float(np.mean(lag))
        self.stats.lag_max = max(self.stats.lag_max, int(lag.max()))


class AnyLearner(Protocol):
    """A learner as the training loop, records and reports see it. Attributes as in `Learner`."""

    num_updates: int
    metrics: Metrics
    stats: LearnerStats
    too_many_nonfinite: bool

    @property
    def state(self) -> LearnerState:
        """Newest learner state."""
        ...

    def restore_learned(self, learned: LearnerState, /) -> None:
        """Continues from the parameters, optimizer and extras of an older state."""
        ...


class HostLearner(AnyLearner, Protocol):
    """A learner on trajectories of the host: `Learner`, or replicas with a parameter server."""

    previous_params: Params

    def step(self, episodes: EpisodeTracker, log: EpisodeLog) -> bool:
        """Runs an update if it is done within a short wait; returns whether it was."""
        ...

    def totals(self) -> Mapping[str, float]:
        """Returns seconds and counts since the start, by metric name, that no other part of the run reports."""
        ...

    def waits(self) -> Sequence[str]:
        """Returns a sentence for each replica on what it waits for; from any thread, without a wait."""
        ...
