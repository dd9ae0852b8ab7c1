"""Training from trajectories that the host collects: environments in this process or in others."""

import jax
import numpy as np

from agents.api import LearnerState
from envpool_bridge.spec.tree import Tree, leaves
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.collect.collector import Collector, CollectorConfig
from jaxsrl.learner.host_replay import HostReplay
from jaxsrl.learner.loop import HostLearner, Learner, run_learner
from jaxsrl.metrics.sinks import Sinks
from jaxsrl.plan.placement import devices_of
from jaxsrl.training.async_learners import AsynchronousLearners
from jaxsrl.training.base import Training, TrainingSetup
from jaxsrl.training.build import make_host_replay, make_learner, make_source
from jaxsrl.training.reporter import AnyLearner, Reporter
from jaxsrl.training.run_state import Progress, begin, buffer_to_arrays, from_arrays, rows_fit, to_arrays

_NO_ROW = np.uint32(2**32 - 1)
_PROGRESS = frozenset({"calls", "rows", "samples", "gradients", "env_steps", "slots", "replayed_steps"})
"""Last parts of the names of totals that grow only while the run makes progress; failures and requests grow without any."""


class HostTraining(Training):
    """A run whose environments are on the host."""

    def __init__(self, setup: TrainingSetup) -> None:
        """Nothing starts yet."""
        super().__init__(setup)
        self._progress: Progress | None = None
        self._source: Collector | None = None
        self._learner: HostLearner | None = None
        self._replay: HostReplay | None = None
        self._saved: Arrays | None = None

    @property
    def progress(self) -> Progress:
        """The run between two updates; once it has begun."""
        if self._progress is None:
            raise RuntimeError("begin comes first")
        return self._progress

    def begin(self, arrays: Arrays | None) -> int:
        """Where the run goes on; see `Training`."""
        agent, config = self.setup.agent, self.config
        if arrays is None:
            self._progress = begin(agent, self.init_key, config.num_envs, self.setup.spec)
        else:
            self._progress = from_arrays(
                agent, self.init_key, arrays, config.num_envs, config.rollout_length, self.setup.spec
            )
            self._saved = arrays
        return int(self._progress.state.num_updates)

    def rows_fit(self, arrays: Arrays) -> bool:
        """See `Training`."""
        return rows_fit(arrays, self.setup.agent, self.config.num_envs, self.setup.spec)

    def finished_state(self) -> LearnerState:
        """See `Training`."""
        return self.progress.state

    def learn(self, sinks: Sinks) -> AnyLearner:
        """See `Training`."""
        setup, progress = self.setup, self.progress
        first = int(progress.state.num_updates)
        remembered = progress.log.agent_state
        if remembered is None:
            remembered = jax.device_get(setup.agent.initial_agent_state(self.config.num_envs))
        source_config = CollectorConfig(
            setup.source,
            setup.spec,
            setup.plan,
            setup.agent,
            self.config.seed,
            first,
            self._key_of_actions(first),
            remembered,
            supervision=self.config.supervision,
        )
        self._source = source = self.make_source(source_config)
        if setup.plan.max_policy_lag == 1 and first:
            if progress.behind is None:  # saved at another lag, or restored in part
                progress.behind = progress.state.params
            source.publish(first - 1, progress.behind)
        self._replay = self.make_replay(self._saved)
        self._saved = None
        learner = make_learner(
            setup, source, progress, self.update_key, self.lifecycle, self._replay, self.finite_watch()
        )
        self._learner = learner
        source.start(progress.reset)
        self.report_on(
            Reporter(
                sinks, learner, self._totals, self.config.env_steps_per_update, setup.spec.action_repeat, setup.plan
            ),
            first,
        )
        if progress.log.last_observation is not None:
            self._check_replay(source, progress.log.last_observation)
        run_learner(
            learner,
            self.config.num_updates,
            progress.episodes,
            progress.log,
            self.stops,
            lambda: self.after_update(learner),
        )
        if isinstance(learner, Learner) and len(setup.plan.learners) > 1:
            # Who goes on with the parameters of all policies, an evaluation say, wants them in one place.
            learner.state = jax.device_put(learner.state, devices_of(setup.plan.learners[0])[0])
        return learner

    def _key_of_actions(self, first: int) -> jax.Array:
        """Returns the key of this process's actions, whose steps are counted from `first` updates.

        After dropped trajectories these counts have been used before.
        A different key is then used, so that no (key, step) pair repeats.
        """
        steps = self.progress.log.end_step
        if steps == first * self.config.rollout_length:
            return self.act_key
        return jax.random.fold_in(jax.random.fold_in(self.act_key, _NO_ROW), np.uint32(steps % 2**32))

    def make_source(self, config: CollectorConfig) -> Collector:
        """What collects the trajectories."""
        return make_source(config, self.lifecycle)

    def make_replay(self, saved: Arrays | None) -> HostReplay | None:
        """The experience that the plan keeps elsewhere than on devices, as it was saved; None where it keeps none."""
        return make_host_replay(self.setup, self.update_key, saved)

    def counts(self) -> dict[str, float]:
        """See `Training`."""
        own = self.own_totals().items()
        return super().counts() | {name: total for name, total in own if name.rpartition("/")[2] in _PROGRESS}

    def waits(self, is_waiting: bool) -> list[str]:
        """See `Training`."""
        replicas = self._learner.waits() if isinstance(self._learner, AsynchronousLearners) else []
        source = self._source.waits() if self._source is not None else ()
        return [*super().waits(is_waiting), *replicas, *source]

    def arrays(self, learner: AnyLearner) -> Arrays:
        """See `Training`."""
        if self._learner is None:
            raise RuntimeError("learn comes first")
        behind = self._learner.behind if self.setup.plan.max_policy_lag == 1 else None
        with_replay = self.config.checkpoint_replay
        arrays = to_arrays(learner.state, behind, self.progress.episodes, self.progress.log, with_replay)
        if self._replay is not None and with_replay:
            arrays |= buffer_to_arrays(self._replay.saved())
        return arrays

    def episode_metrics(self) -> dict[str, float]:
        """See `Training`."""
        return self.progress.episodes.metrics()

    def episode_timings(self) -> dict[str, float]:
        """See `Training`."""
        return self.progress.episodes.timings()

    def close(self) -> None:
        """Stops the environments, and what gathers samples."""
        try:
            if self._source is not None:
                self._source.close()
        finally:
            if self._replay is not None:
                self._replay.close()

    def _totals(self) -> dict[str, float]:
        """Returns the totals of a record, see `Collector.totals`."""
        return self.own_totals()

    def own_totals(self) -> dict[str, float]:
        """Returns the totals of all parts in this process, but for the learner."""
        totals = dict(self._source.totals()) if self._source is not None else {}
        if isinstance(self._learner, AsynchronousLearners):
            totals |= self._learner.totals()
        return totals | (self._replay.totals() if self._replay is not None else {})

    def _check_replay(self, source: Collector, expected: Tree) -> None:
        """Warns of environments that did not return to their saved state; the run continues from where they are."""
        observed = source.first_observation(self.stops)
        if observed is None:
            return
        restarted = self.progress.log.restarted
        if restarted.any():
            self.say(
                f"{restarted.sum()} of {len(restarted)} environments start new episodes: theirs were too long to be replayed "
                f"(jaxsrl.collect.episode_log.MAX_BYTES), so the run differs from an uninterrupted one"
            )
        differs = np.zeros(len(restarted), bool)
        for seen, wanted in zip(leaves(observed), leaves(expected), strict=True):
            differs |= (seen != wanted).reshape(len(differs), -1).any(1)
        rows = np.flatnonzero(differs & ~restarted).tolist()
        if rows:
            self.say(
                f"{len(rows)} of {len(differs)} environments could not be restored (first: {rows[:5]}): they are not "
                f"deterministic given seed and actions, so the run differs from an uninterrupted one"
            )
