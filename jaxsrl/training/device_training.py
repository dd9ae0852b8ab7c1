"""Training wholly on devices: JAX environments, acting and learning in one program."""

import jax

from agents.api import Agent, LearnerState
from jaxsrl.checkpoints.names import EPISODES
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.device_loop.checkpoint_rows import rows_fit
from jaxsrl.device_loop.loop import DeviceLearner, run_device_learner
from jaxsrl.device_loop.program import RunKeys, make_run_keys
from jaxsrl.envs.protocol import JaxEnv, validate_env
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.metrics.episodes import EpisodeTotals
from jaxsrl.metrics.sinks import Sinks
from jaxsrl.plan.placement import devices_of
from jaxsrl.training.base import Training, TrainingSetup
from jaxsrl.training.reporter import AnyLearner, Reporter
from jaxsrl.training.run_state import named, restore_state, state_to_arrays


class DeviceTraining(Training):
    """A run whose environments are on the learner's devices."""

    def __init__(self, setup: TrainingSetup, env: JaxEnv) -> None:
        """Checks what `env` returns; nothing starts yet.

        Raises:
            BadEnvOutputError: the environment does not return what its spec says.
        """
        super().__init__(setup)
        validate_env(env)
        self._env = env
        self._episodes = EpisodeTotals()
        self._state: LearnerState | None = None
        self._saved: Arrays | None = None

    def begin(self, arrays: Arrays | None) -> int:
        """See `Training`."""
        agent = self.setup.agent
        if arrays is None:
            state = jax.jit(agent.init)(self.init_key)
        else:
            state = restore_state(agent, self.init_key, arrays)
            if any(name.startswith(EPISODES) for name in arrays):
                self._episodes.restore(named(arrays, EPISODES))
                self._saved = arrays
        self._state = state
        return int(state.num_updates)

    def rows_fit(self, arrays: Arrays) -> bool:
        """See `Training`."""
        return isinstance(self.setup.agent, Agent) and rows_fit(arrays, self._env, self.setup.agent, self._run_keys())

    def finished_state(self) -> LearnerState:
        """See `Training`."""
        if self._state is None:
            raise RuntimeError("begin comes first")
        return self._state

    def learn(self, sinks: Sinks) -> AnyLearner:
        """See `Training`."""
        setup, config = self.setup, self.config
        if not isinstance(setup.agent, Agent):
            raise TypeError(f"agent {setup.agent.name} has no replay around it")
        learner = DeviceLearner(
            setup.agent,
            self._env,
            LearnerMesh(devices_of(setup.plan.learner)),
            config.rollout_length,
            self.finished_state(),
            self._run_keys(),
            self._saved,
            self.finite_watch(),
        )
        reporter = Reporter(sinks, learner, dict, config.env_steps_per_update, setup.spec.action_repeat, setup.plan)
        self.report_on(reporter, learner.num_updates)

        def after_dispatch() -> None:
            learner.take_episodes(self._episodes)
            self.after_update(learner)

        run_device_learner(
            learner,
            config.num_updates,
            config.checkpoint_every_updates,
            self.stops,
            after_dispatch,
        )
        return learner

    def arrays(self, learner: AnyLearner) -> Arrays:
        """See `Training`."""
        if not isinstance(learner, DeviceLearner):
            raise TypeError(f"expected the device's learner, got {type(learner).__name__}")
        episodes = {EPISODES + name: value for name, value in self._episodes.to_arrays().items()}
        state = state_to_arrays(learner.state, self.config.checkpoint_replay)
        return {**state, **episodes, **learner.save_arrays()}

    def episode_metrics(self) -> dict[str, float]:
        """See `Training`."""
        return self._episodes.metrics()

    def _run_keys(self) -> RunKeys:
        return make_run_keys(self.config.seed, self.act_key, self.update_key, self.config.num_envs)
