"""TD3 on any environment with continuous actions: --env.id ID (Fujimoto et al. 2018)."""

from agents.networks.config import IMAGE_TORSOS
from agents.networks.for_spec import network_for
from agents.td3 import TD3Config
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig, make_env
from jaxsrl.config.parts import ReplayMemoryConfig
from jaxsrl.experiment import cli


def make_experiment(env: EnvConfig = EnvConfig("Pendulum-v1")) -> Experiment:
    """Returns TD3, one gradient step on 256 transitions for each env step.

    The network is chosen by the observations. Images are kept in the memory of the host.
    """
    network = network_for(make_env(env).spec(), NetworkConfig(hidden_sizes=(256, 256), activation="relu"))
    has_images = network.torso in IMAGE_TORSOS
    capacity = 100_000 if has_images else 1_000_000
    return Experiment(
        env=env,
        network=network,
        agent=TD3Config(
            replay=ReplayConfig(capacity=capacity, batch_size=256, min_size=10_000, gradient_steps_per_env_step=1.0),
        ),
        run=RunConfig(
            num_envs=8,
            rollout_length=4,
            total_env_steps=1_000_000,
            checkpoint=CheckpointConfig(interval_updates=3_000, max_to_keep=1),
            eval=EvalConfig(final_episodes=20),
            replay=ReplayMemoryConfig("host" if has_images else "device"),
        ),
    )


if __name__ == "__main__":
    cli(make_experiment)
