"""Learner loop without trajectories: each update takes a fixed number of gradient steps on a dataset."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, LearnerState, Metrics, ReplayAgent, Sample
from jaxsrl.learner.finite_updates import SKIPPED, keep_if_finite
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.host_replay import HostReplay, HostReplayMesh
from jaxsrl.learner.loop import LearnerStats
from jaxsrl.replay.client import ReplayClient
from jaxsrl.replay.state import replace_learned

_MOST_TOGETHER = 10  # samples of one call


class OfflineReplay(HostReplay):
    """Gradient steps on fixed experience. On one device each compiled call takes several, since the call costs as much as one.

    Args:
        agent: agent to train, for single frames.
        mesh: learning devices.
        run_key: the number of updates is folded into it.
        experience: a dataset; closed with this.
        gradient_steps: of an update.
    """

    def __init__(
        self, agent: ReplayAgent, mesh: HostReplayMesh, run_key: Array, experience: ReplayClient, gradient_steps: int
    ) -> None:
        super().__init__(agent, mesh, run_key, experience)
        # The same number in every call: one program, and the same results after a resume.
        sizes = [size for size in range(1, _MOST_TOGETHER + 1) if gradient_steps % size == 0]
        self._together = max(sizes) if len(mesh.devices) == 1 else 1
        self._learn_together = jax.jit(self._gradient_steps, donate_argnums=(0, 1))

    def _learn_steps(self, state: LearnerState, update: np.int32, due: int) -> tuple[LearnerState, Metrics | None]:
        if self._together == 1:
            return super()._learn_steps(state, update, due)
        sums: Metrics | None = None
        for begin in range(0, due, self._together):
            samples = [self._experience.sample() for _ in range(self._together)]
            sums = self._zeros(state, samples[0]) if sums is None else sums
            stacked: Sample = jax.tree.map(lambda *leaves: np.stack(leaves), *samples)
            numbers = np.arange(begin, begin + self._together, dtype=np.int32)
            state, sums = self._learn_together(state, sums, stacked, update, numbers)
        return state, sums

    def _gradient_steps(
        self, state: LearnerState, sums: Metrics, samples: Sample, update: Array, numbers: Array
    ) -> tuple[LearnerState, Metrics]:
        def step(state: LearnerState, inputs: tuple[Sample, Array]) -> tuple[LearnerState, Metrics]:
            sample, number = inputs
            learned, metrics, _ = self._update(state, sample, update, number)
            return learned, metrics

        learned, metrics = jax.lax.scan(step, state, (samples, numbers))
        # Checked once: a step that is not finite undoes all of the call.
        totals: Metrics = jax.tree.map(lambda values: jnp.sum(values, axis=0), metrics)
        learned, totals = keep_if_finite(state, learned, totals)
        totals[SKIPPED] *= len(numbers)
        return learned, jax.tree.map(jnp.add, sums, totals)


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
