"""TD3 on Pendulum-v1. Run: python experiments/td3_pendulum.py --run.seed 1"""

import dataclasses

from agents.api import ReplayConfig
from agents.networks.config import NetworkConfig
from agents.td3 import TD3Config, make_td3
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("Pendulum-v1")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64), activation="relu")
    agent: TD3Config = TD3Config(
        # One gradient step on 128 transitions for each env step.
        replay=ReplayConfig(capacity=50_000, batch_size=128, min_size=1_000, samples_per_insert=128.0),
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        exploration_noise=0.2,
    )
    run: RunConfig = RunConfig(
        num_envs=8,
        rollout_length=4,
        env_steps=30_000,
        checkpoint_every_updates=0,
        evaluation_episodes=50,
    )


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_td3(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
