"""DQN, double and with three steps, on any environment with discrete actions: --env.id ID (Mnih et al. 2015).

Without images it is also dueling and prioritized.
"""

from agents.dqn import DQNConfig
from agents.networks.config import IMAGE_TORSOS
from agents.networks.for_spec import network_for
from agents.ops.schedules import ScheduleConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig, make_env
from jaxsrl.config.parts import ReplayMemoryConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("CartPole-v1")) -> Experiment:
    """Returns DQN with settings for the observations of the environment: images, or others."""
    network = network_for(make_env(env).spec(), NetworkConfig(hidden_sizes=(128, 128), activation="relu"))
    has_images = network.torso in IMAGE_TORSOS
    run = RunConfig(
        num_envs=16,
        rollout_length=16,
        total_env_steps=10_000_000 if has_images else 500_000,
        eval=EvalConfig(final_episodes=20),
        replay=ReplayMemoryConfig("host" if has_images else "device"),
    )
    is_atari = env.with_suite().suite == "atari"
    return Experiment(env, _image_settings(is_atari) if has_images else _vector_settings(), network, run)


def _image_settings(clips_rewards: bool) -> DQNConfig:
    return DQNConfig(
        # 32 transitions every 4 env steps.
        replay=ReplayConfig(capacity=1_000_000, batch_size=32, min_size=50_000, gradient_steps_per_env_step=0.25),
        epsilon_start=1.0,
        epsilon_end=0.01,
        epsilon_decay_fraction=0.1,
        learning_rate=6.25e-5,
        n_step=3,
        target_update_period=2_000,
        double=True,
        reward_clip=1.0 if clips_rewards else None,
    )


def _vector_settings() -> DQNConfig:
    return DQNConfig(
        # 64 transitions every 4 env steps.
        replay=ReplayConfig(
            capacity=100_000, batch_size=64, min_size=2_000, gradient_steps_per_env_step=0.25, priority_exponent=0.6
        ),
        epsilon_start=1.0,
        epsilon_end=0.05,
        epsilon_decay_fraction=0.2,
        learning_rate=1e-3,
        # With a constant rate the last parameters, which are evaluated, are noisy.
        learning_rate_schedule=ScheduleConfig("linear"),
        n_step=3,
        target_update_period=250,
        double=True,
        dueling=True,
    )


if __name__ == "__main__":
    cli(make_experiment)
