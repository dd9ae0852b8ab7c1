"""IMPALA on CartPole; parameters that act are one update old.

Run: python experiments/impala_cartpole.py --run.seed 1
"""

import dataclasses

from agents.impala import IMPALAConfig, make_impala
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
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64))
    agent: IMPALAConfig = IMPALAConfig(
        learning_rate=5e-3,
        learning_rate_schedule="linear",
        discount=0.98,
        entropy_coef=0.005,
        rmsprop_initial_scale=0.0,
    )
    run: RunConfig = RunConfig(num_envs=32, rollout_length=16, env_steps=500_000, max_policy_lag=1)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_impala(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
