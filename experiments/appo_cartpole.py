"""APPO (asynchronous PPO with V-trace targets) on CartPole-v1. Run: python experiments/appo_cartpole.py --run.seed 1"""

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
    """Everything that changes the run; a policy lag of 2 or more is what makes it asynchronous."""

    env: EnvConfig = EnvConfig("CartPole-v1")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64))
    agent: PPOConfig = PPOConfig(
        learning_rate=7e-4,
        learning_rate_schedule="linear",
        discount=0.98,
        gae_lambda=0.8,
        entropy_coef=0.005,
        num_minibatches=8,
        targets="vtrace",
    )
    run: RunConfig = RunConfig(num_envs=128, rollout_length=32, env_steps=1_500_000, max_policy_lag=4)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_ppo(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
