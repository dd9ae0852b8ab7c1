"""Learner loop without trajectories: each update takes a fixed number of gradient steps on a dataset."""

import time

import jax

from agents.api import LearnerState, Metrics
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.host_replay import HostReplay
from jaxsrl.learner.loop import LearnerStats
from jaxsrl.replay.state import replace_learned


class OfflineLearner:
    """Owner of the learner state of a run without environments. Thread-safety: one thread.

    Args:
        replay: gradient steps of an update, on the samples of a `FixedReplayClient`.
        state: initial state.
        watch: of updates that are skipped because they are not finite.

    Attributes:
        state: newest learner state, on the mesh.
        num_updates: updates in `state`.
        metrics: of the newest update.
        stats: totals.
        too_many_nonfinite: whether as many consecutive updates were skipped as `watch` allows (`restore_learned` clears it).
    """

    def __init__(self, replay: HostReplay, state: LearnerState, watch: FiniteWatch) -> None:
        self._replay, self._watch = replay, watch
        self.too_many_nonfinite = False
        self.state = replay.mesh.place_state(state)
        self.num_updates = int(state.num_updates)
        self.metrics: Metrics = {}
        self.stats = LearnerStats()

    def step(self) -> None:
        """Runs one update."""
        start = time.perf_counter()
        self.state, self.metrics = self._replay(self.state, None)
        jax.block_until_ready((self.state, self.metrics))
        self.too_many_nonfinite = self._watch.observe(self.metrics, (), wait=True)
        self.stats.skipped = self._watch.skipped
        self.num_updates += 1
        self.stats.updates += 1
        self.stats.busy_seconds += time.perf_counter() - start

    def restore_learned(self, learned: LearnerState) -> None:
        """Replaces what was learned by that of an older state, and continues from it."""
        self.state = self._replay.mesh.place_state(replace_learned(self.state, learned))
        self.too_many_nonfinite = False
