"""Learner loop without trajectories: each update takes a fixed number of gradient steps on a dataset."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, LearnerState, Metrics, ReplayAgent, Sample
from jaxsrl.learner.finite_updates import SKIPPED, keep_if_finite, learned_finite
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.host_replay import HostReplay, HostReplayMesh
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.replay.fixed import FixedReplayClient
from jaxsrl.replay.state import replace_learned


class OfflineReplay(HostReplay):
    """Gradient steps on a dataset, in compiled calls of as many as the samples that its client joins.

    A call holds the state before and after it, and one gradient step's changes: up to three states.

    Args:
        agent: agent to train, for single frames.
        mesh: learning devices; one, if samples are joined.
        run_key: the number of updates is folded into it.
        experience: the dataset; closed with this.
    """

    def __init__(self, agent: ReplayAgent, mesh: HostReplayMesh, run_key: Array, experience: FixedReplayClient) -> None:
        super().__init__(agent, mesh, run_key, experience)
        self._num_joined = experience.num_joined
        self._one_of: Sample | None = None
        options = compiler_options(mesh.devices[0].platform)
        self._learn_joined = jax.jit(self._gradient_steps, donate_argnums=(0, 1), compiler_options=options)

    def _learn_steps(self, state: LearnerState, update: np.int32, due: int) -> tuple[LearnerState, Metrics | None]:
        if self._num_joined == 1:
            return super()._learn_steps(state, update, due)
        sums: Metrics | None = None
        for begin in range(0, due, self._num_joined):
            samples = self.experience.sample()
            sums = self._first_sums(state, samples) if sums is None else sums
            numbers = np.arange(begin, begin + self._num_joined, dtype=np.int32)
            state, sums = self._learn_joined(state, sums, samples, update, numbers)
        return state, sums

    def _first_sums(self, state: LearnerState, samples: Sample) -> Metrics:
        one: Any = self._one_of
        if one is None:
            one = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], self._separate(samples)))
            self._one_of = one
        return self._zeros(state, one)

    def _gradient_steps(
        self, state: LearnerState, sums: Metrics, samples: Sample, update: Array, numbers: Array
    ) -> tuple[LearnerState, Metrics]:
        inputs = self._separate(samples), numbers

        def step(state: LearnerState, inputs: tuple[Sample, Array]) -> tuple[LearnerState, Metrics]:
            sample, number = inputs
            learned, metrics, _ = self._update(state, sample, update, number)
            return learned, metrics

        def guarded_step(state: LearnerState, inputs: tuple[Sample, Array]) -> tuple[LearnerState, Metrics]:
            return keep_if_finite(state, *step(state, inputs))

        # A check of every step costs an accelerator as much as the step. Losses show every step, and NaN stays in what learned it.
        # If something was not finite, the steps are repeated one by one.
        learned, metrics = jax.lax.scan(step, state, inputs)
        learned, metrics = jax.lax.cond(
            learned_finite(learned, metrics),
            lambda: (learned, metrics | {SKIPPED: jnp.zeros(len(numbers), jnp.float32)}),
            lambda: jax.lax.scan(guarded_step, state, inputs),
        )
        return learned, jax.tree.map(lambda total, values: total + jnp.sum(values, axis=0), sums, metrics)

    def _separate(self, samples: Sample) -> Sample:
        """Returns joined samples, [T, K * N, ...], with their number first: [K, T, N, ...]."""
        count = self._num_joined

        def steps(leaf: Any) -> Array:
            return jnp.moveaxis(leaf.reshape(leaf.shape[0], count, leaf.shape[1] // count, *leaf.shape[2:]), 1, 0)

        def rows(leaf: Any) -> Array:
            return jnp.reshape(leaf, (count, leaf.shape[0] // count, *leaf.shape[1:]))

        trajectory = samples.trajectory
        separate = jax.tree.map(steps, dataclasses.replace(trajectory, agent_state=()))
        return Sample(
            dataclasses.replace(separate, agent_state=jax.tree.map(rows, trajectory.agent_state)),
            rows(samples.probability),
            jnp.broadcast_to(samples.num_windows, (count,)),
        )


class OfflineLearner(AnyLearner):
    """Owner of the learner state of a run without environments. Thread-safety: one thread.

    Args:
        replay: gradient steps of an update, on the samples of a `FixedReplayClient`.
        state: initial state.
        watch: Watch of updates that are skipped because they are not finite.
    """

    def __init__(self, replay: HostReplay, state: LearnerState, watch: FiniteWatch) -> None:
        super().__init__(int(state.num_updates))
        self._replay, self._watch = replay, watch
        self.state = replay.mesh.place_state(state)

    def step(self) -> None:
        """Runs one update."""
        start = time.perf_counter()
        self.state, self.metrics = self._replay(self.state, None)
        jax.block_until_ready((self.state, self.metrics))
        self.too_many_nonfinite = self._watch.observe(self.metrics, (), wait=True)
        self._watch.count_in(self.stats)
        self.num_updates += 1
        self.stats.updates += 1
        self.stats.busy_seconds += time.perf_counter() - start

    def restore_learned(self, learned: LearnerState) -> None:
        self.state = self._replay.mesh.place_state(replace_learned(self.state, learned))
        self.too_many_nonfinite = False
