"""Experiments for any environment choose their settings by its spaces."""

from experiments import ppo
from jaxsrl import EnvConfig


def test_ppo_explores_within_the_bounds_of_continuous_actions():
    discrete, continuous = (ppo.make_experiment(EnvConfig(name)) for name in ("CartPole-v1", "Pendulum-v1"))
    assert (discrete.network.initial_log_std, discrete.agent.entropy_coef) == (0.0, 0.01)
    assert (continuous.network.initial_log_std, continuous.agent.entropy_coef) == (-0.5, 0.0)
