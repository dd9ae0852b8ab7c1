"""DQN on an Atari game, as in Nature 2015. Run: python experiments/dqn_atari.py --env.id ALE/Breakout-v5

A million frames are 7 GB, kept in the memory of this machine.
"""

import dataclasses

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ops.epsilon_greedy import Exploration
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("ALE/Pong-v5", suite="atari")
    network: NetworkConfig = NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu")
    agent: DQNConfig = DQNConfig(
        # 32 transitions every 4 env steps.
        replay=ReplayConfig(capacity=1_000_000, batch_size=32, min_size=50_000, samples_per_insert=8.0),
        exploration=Exploration(initial=1.0, final=0.1, fraction=0.1),
        learning_rate=6.25e-5,
        target_period=2_500,
        double=True,
        reward_clip=1.0,
    )
    run: RunConfig = RunConfig(
        num_envs=16, rollout_length=16, env_steps=10_000_000, evaluation_episodes=5, replay_on="host"
    )


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_dqn(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
