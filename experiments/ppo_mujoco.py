"""PPO on a MuJoCo task. Run: python experiments/ppo_mujoco.py --env.id Hopper-v5"""

import dataclasses

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.normalization import NormalisationConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("HalfCheetah-v5")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64))
    agent: PPOConfig = PPOConfig(
        learning_rate=3e-4,
        learning_rate_schedule="linear",
        entropy_coef=0.0,
        num_epochs=10,
        num_minibatches=32,
        normalisation=NormalisationConfig(observations=True, rewards=True),
    )
    run: RunConfig = RunConfig(num_envs=32, rollout_length=64, env_steps=1_000_000, evaluation_episodes=10)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_ppo(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
