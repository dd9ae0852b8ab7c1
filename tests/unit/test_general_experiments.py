"""Experiments for any environment choose their settings by its spaces."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from experiments import dqn, impala, ppo, sac, td3
from jaxsrl import EnvConfig


def test_ppo_explores_within_the_bounds_of_continuous_actions():
    discrete, continuous = (ppo.make_experiment(EnvConfig(name)) for name in ("CartPole-v1", "Pendulum-v1"))
    assert (discrete.network.initial_log_std, discrete.agent.entropy_coef) == (0.0, 0.01)
    assert (continuous.network.initial_log_std, continuous.agent.entropy_coef) == (-0.5, 0.0)


class Declared(gymnasium.Env):
    """Observations and actions of the given spaces, without a task."""

    def __init__(self, observation, is_discrete):
        self.observation_space = observation
        self.action_space = spaces.Discrete(2) if is_discrete else spaces.Box(-1.0, 1.0, (2,), np.float32)


IMAGE, COUNTS = spaces.Box(0, 255, (40, 40, 3), np.uint8), spaces.Box(0, 10_000, (4,), np.int32)
MIXED = spaces.Dict({"camera": IMAGE, "counts": COUNTS})


@pytest.mark.parametrize(
    ("observation", "torso", "is_normalized"),
    [(IMAGE, "nature_cnn", False), (COUNTS, "mlp", True), (MIXED, "nature_cnn", True)],
    ids=["image", "counts", "both"],
)
@pytest.mark.parametrize("module", [ppo, impala, dqn, sac, td3])
def test_every_general_experiment_chooses_by_the_observation(monkeypatch, module, observation, torso, is_normalized):
    made = EnvSpec("Declared-v0", lambda: Declared(observation, is_discrete=module is dqn))
    monkeypatch.setitem(gymnasium.registry, "Declared-v0", made)
    experiment = module.make_experiment(EnvConfig("Declared-v0"))
    assert experiment.network.torso == torso
    experiment.build()
    if module in (ppo, impala):
        assert experiment.agent.normalization.observations == is_normalized
