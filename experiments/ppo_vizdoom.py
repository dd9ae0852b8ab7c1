"""PPO on a ViZDoom scenario. Run: python experiments/ppo_vizdoom.py --env.id VizdoomHealthGathering-v1"""

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

    env: EnvConfig = EnvConfig("VizdoomBasic-v1", suite="vizdoom")
    network: NetworkConfig = NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu")
    agent: PPOConfig = PPOConfig(
        learning_rate=2.5e-4,
        learning_rate_schedule="linear",
        entropy_coef=0.01,
        # Rewards differ by a factor of 100 between scenarios; variables are health and ammunition as they are counted.
        normalisation=NormalisationConfig(observations=True, rewards=True),
    )
    run: RunConfig = RunConfig(num_envs=16, rollout_length=128, env_steps=2_000_000, evaluation_episodes=10)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_ppo(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
