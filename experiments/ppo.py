"""PPO on any environment: --env.id ID. Settings are those of images, of continuous actions or of neither (Schulman et al. 2017)."""

import dataclasses

from agents.networks.config import IMAGE_TORSOS
from agents.networks.for_spec import network_for
from agents.networks.observation_scale import normalized_leaves
from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.spec.specs import has_floats
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig, make_env
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("CartPole-v1")) -> Experiment:
    """Returns PPO with settings for the observations and actions of the environment."""
    spec = make_env(env).spec()
    is_continuous = has_floats(spec.action)
    # With a deviation of 1 the bounds of actions would clip a third of all samples.
    sizes = NetworkConfig(hidden_sizes=(64, 64), initial_log_std=-0.5 if is_continuous else 0.0)
    network = network_for(spec, sizes)
    normalization = NormalizationConfig(observations=bool(normalized_leaves(spec)), rewards=True)
    if network.torso in IMAGE_TORSOS:
        agent, run = (
            _image_settings(normalization),
            RunConfig(num_envs=16, rollout_length=128, total_env_steps=10_000_000),
        )
    else:
        agent = _vector_settings(normalization, is_continuous)
        run = RunConfig(num_envs=32, rollout_length=64, total_env_steps=1_000_000)
    run = dataclasses.replace(run, max_policy_lag=0, eval=EvalConfig(final_episodes=20))
    return Experiment(env, agent, network, run)


def _image_settings(normalization: NormalizationConfig) -> PPOConfig:
    return PPOConfig(
        learning_rate=2.5e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        clip_epsilon=0.1,
        normalization=normalization,
    )


def _vector_settings(normalization: NormalizationConfig, is_continuous: bool) -> PPOConfig:
    return PPOConfig(
        learning_rate=3e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        entropy_coef=0.0 if is_continuous else 0.01,
        num_epochs=10,
        num_minibatches=32,
        normalization=normalization,
    )


if __name__ == "__main__":
    cli(make_experiment)
