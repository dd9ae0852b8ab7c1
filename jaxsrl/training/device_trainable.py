"""A learner whose environments, acting and learning are one program on its devices."""

from agents.api import Agent, LearnerState
from jaxsrl.checkpoints.names import EPISODES
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.device_loop.checkpoint_rows import rows_fit
from jaxsrl.device_loop.loop import DeviceLearner, RowsLearner
from jaxsrl.device_loop.program import RunKeys, make_run_keys
from jaxsrl.envs.protocol import JaxEnv, validate_env
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.loop import AnyLearner
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.metrics.episodes import EpisodeTotals, row_groups
from jaxsrl.plan.placement import devices_of
from jaxsrl.training.run_state import init_state, named, restore_state, state_to_arrays
from jaxsrl.training.setup import TrainingSetup
from jaxsrl.training.trainable import Trainable


class DeviceTrainable(Trainable):
    """The plan `device_only`, whose environments are restored bit for bit and hold nothing that must be freed.

    Args:
        setup: Setup of the run.
        agent: Agent of the setup.
        env: the source's environment.

    Raises:
        BadEnvOutputError: If the environment does not return what its spec says.
    """

    def __init__(self, setup: TrainingSetup, agent: Agent, env: JaxEnv) -> None:
        validate_env(env)
        self._setup, self._agent, self._env = setup, agent, env
        self._episodes = EpisodeTotals(row_groups(setup.spec, setup.config.num_envs))
        self._initial: LearnerState | None = None
        self._saved: Arrays | None = None
        self._learner: RowsLearner | None = None

    @property
    def learner(self) -> RowsLearner:
        """Returns the learner; after `start`."""
        if self._learner is None:
            raise RuntimeError("start comes first")
        return self._learner

    def rows_fit(self, arrays: Arrays) -> bool:
        return rows_fit(arrays, self._env, self._agent, self.run_keys())

    def restore_or_init(self, arrays: Arrays | None) -> int:
        key = self._setup.keys.init
        state = init_state(self._agent, key) if arrays is None else restore_state(self._agent, key, arrays)
        if arrays is not None and any(name.startswith(EPISODES) for name in arrays):
            self._episodes.restore(named(arrays, EPISODES))
            self._saved = arrays
        self._initial = state
        return int(state.num_updates)

    def start(self) -> AnyLearner:
        setup = self._setup
        watch = FiniteWatch(setup.config.learner.max_nonfinite_updates)  # the host has no batch to write
        self._learner = self.make_learner(self.final_state(), self._saved, watch)
        self._initial = self._saved = None
        return self._learner

    def make_learner(self, state: LearnerState, saved: Arrays | None, watch: FiniteWatch) -> RowsLearner:
        """Returns the learner that continues from a state, and from the rows of a checkpoint."""
        mesh = LearnerMesh(devices_of(self._setup.plan.learner))
        length = self._setup.config.rollout_length
        return DeviceLearner(self._agent, self._env, mesh, length, state, self.run_keys(), saved, watch)

    def step(self) -> bool:
        config, learner = self._setup.config, self.learner
        learner.advance(config.next_stop(learner.num_updates), config.checkpoint.interval_updates)
        learner.take_episodes(self._episodes)
        return True

    def final_state(self) -> LearnerState:
        return self.learner.state if self._initial is None else self._initial

    def to_arrays(self) -> Arrays:
        episodes = {EPISODES + name: value for name, value in self._episodes.to_arrays().items()}
        state = state_to_arrays(self.learner.state, self._setup.config.checkpoint.include_replay)
        return {**state, **episodes, **self.learner.save_arrays()}

    def episode_metrics(self) -> dict[str, float]:
        return self._episodes.metrics()

    def run_keys(self) -> RunKeys:
        """Returns the keys of the run."""
        keys, config = self._setup.keys, self._setup.config
        return make_run_keys(config.seed, keys.act, keys.update, config.num_envs)
