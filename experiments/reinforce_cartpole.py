"""REINFORCE with a baseline on CartPole; trajectories longer than its episodes.

Run: python experiments/reinforce_cartpole.py --run.seed 1
"""

import dataclasses

from agents.networks.config import NetworkConfig
from agents.reinforce import REINFORCEConfig, make_reinforce
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("CartPole-v1")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64))
    agent: REINFORCEConfig = REINFORCEConfig(
        learning_rate=1e-2, learning_rate_schedule="linear", discount=0.99, entropy_coef=0.0
    )
    run: RunConfig = RunConfig(num_envs=16, rollout_length=1024, env_steps=1_000_000, max_policy_lag=0)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_reinforce(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
