"""Rainbow on CartPole-v1: every option of DQN at once. Run: python experiments/rainbow_cartpole.py --run.seed 1"""

import dataclasses

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn, rainbow_config
from agents.networks.config import NetworkConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("CartPole-v1")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(128, 128), activation="relu")
    agent: DQNConfig = rainbow_config(
        # Sizes of a small task; what is learned, and how, is Rainbow's. Returns of up to 100 steps of reward 1.
        replay=ReplayConfig(
            capacity=50_000, batch_size=64, min_size=1_000, samples_per_insert=16.0, priority_exponent=0.5
        ),
        learning_rate=1e-3,
        learning_rate_schedule="linear",
        target_period=100,
        value_low=0.0,
        value_high=100.0,
        reward_clip=None,
    )
    run: RunConfig = RunConfig(num_envs=16, rollout_length=16, env_steps=100_000, evaluation_episodes=50)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_dqn(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
