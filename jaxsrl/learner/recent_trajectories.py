"""Learner that keeps recent trajectories and trains on each of them several times.

The order is that of SRL's priority queue (Mei et al. 2024, arXiv:2306.16688). The least used trajectory comes next, the newest of
these first. A trajectory that does not fit replaces the most used one, the oldest of these first. Full slots are copied and
released at once, so that environments never wait.
"""

import dataclasses
import time

import numpy as np

from agents.api import LearnerState, Params
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.collect.collector import Collector
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.loop import WAIT_SECONDS, Learner, ObserveSlots
from jaxsrl.learner.mesh import KeyedUpdate, LearnerMesh


@dataclasses.dataclass(eq=False)
class _Kept:
    """Copied slots of one sequence, one per pool.

    Attributes:
        slots: Slots of all pools, for reading only.
        number: trajectories that were collected before it.
        uses: updates that were trained on it.
    """

    slots: list[SlotViews]
    number: int
    uses: int = 0

    @property
    def freshness(self) -> tuple[int, int]:
        """Order of use; the largest comes next."""
        return -self.uses, self.number


class RecentTrajectories:
    """Bounded set of the trajectories of a collector. Thread-safety: one thread, the learner's.

    Args:
        source: Source of trajectories; its slots are released as soon as they are copied.
        max_size: trajectories to keep.
        reuses: updates to train on each of them.
        max_policy_lag: updates that the acting policy of a trajectory may be older than the parameters to train.

    Attributes:
        reused: updates on a trajectory that was used before.
        dropped: trajectories that were used fewer times than allowed, because they were replaced or became too old.
    """

    def __init__(self, source: Collector, max_size: int, reuses: int, max_policy_lag: int) -> None:
        self._source, self._max_size, self._reuses, self._max_lag = source, max_size, reuses, max_policy_lag
        self._kept: list[_Kept] = []
        self._num_collected = self.reused = self.dropped = 0

    def take(self, num_updates: int, timeout_seconds: float, observe: ObserveSlots) -> list[SlotViews] | None:
        """Returns the copied slots to train on next, for reading only; None if nothing is kept and nothing comes in time.

        Args:
            num_updates: version of the learner's parameters.
            timeout_seconds: Longest wait for a trajectory if none is kept.
            observe: receives the slots of every sequence, in order; their memory belongs to the environments afterwards.
        """
        while (sequence := self._source.acquire(0.0)) is not None:
            self._keep(sequence, observe)
        slots = self._next(num_updates)
        if slots is None and (sequence := self._source.acquire(timeout_seconds)) is not None:
            self._keep(sequence, observe)
            slots = self._next(num_updates)
        return slots

    def _keep(self, sequence: int, observe: ObserveSlots) -> None:
        slots = self._source.slots(sequence)
        observe(slots)
        self._kept.append(_Kept([_copy(slot) for slot in slots], self._num_collected))
        self._num_collected += 1
        self._source.drop(sequence)
        if len(self._kept) > self._max_size:
            self._kept.remove(min(self._kept, key=lambda kept: kept.freshness))
            self.dropped += 1

    def _next(self, num_updates: int) -> list[SlotViews] | None:
        while self._kept:
            kept = max(self._kept, key=lambda kept: kept.freshness)
            if num_updates - min(int(slot.policy_version.min()) for slot in kept.slots) > self._max_lag:
                self._kept.remove(kept)
                self.dropped += 1
                continue
            self.reused += kept.uses > 0
            kept.uses += 1
            if kept.uses >= self._reuses:
                self._kept.remove(kept)
            return kept.slots
        return None


class ReusingLearner(Learner):
    """Learner on recent trajectories of a collector, instead of on its slots."""

    def __init__(
        self,
        mesh: LearnerMesh,
        source: Collector,
        state: LearnerState,
        update: KeyedUpdate,
        recent: RecentTrajectories,
        previous_params: Params = None,
        watch: FiniteWatch | None = None,
    ) -> None:
        super().__init__(mesh, source, state, update, previous_params, watch=watch)
        self._recent = recent

    def step(self, observe: ObserveSlots) -> bool:
        slots = self._recent.take(self.num_updates, WAIT_SECONDS, observe)
        self.stats.dropped, self.stats.reused = self._recent.dropped, self._recent.reused
        if slots is None:
            return False
        start = time.perf_counter()
        self._learn(slots)
        self.stats.busy_seconds += time.perf_counter() - start
        return True


def _copy(slot: SlotViews) -> SlotViews:
    views = ("observation", "is_first")  # of the two histories
    names = [field.name for field in dataclasses.fields(slot) if field.name not in views]
    arrays = {name: map_leaves(np.array, getattr(slot, name)) for name in names}
    first = -len(slot.is_first)
    observation = map_leaves(lambda frames: frames[first:], arrays["frames"])
    return SlotViews(observation=observation, is_first=arrays["is_first_frames"][first:], **arrays)
