"""PPO on a MiniGrid task. Run: python experiments/ppo_minigrid.py --env.id MiniGrid-DoorKey-8x8-v0"""

import dataclasses

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("MiniGrid-DoorKey-5x5-v0", suite="minigrid")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64))
    agent: PPOConfig = PPOConfig(learning_rate=1e-3, learning_rate_schedule="linear", entropy_coef=0.01)
    run: RunConfig = RunConfig(num_envs=16, rollout_length=128, env_steps=500_000, evaluation_episodes=20)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_ppo(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
