"""IMPALA on CartPole-v1, with acting parameters one update old (Espeholt et al. 2018)."""

from agents.impala import IMPALAConfig
from agents.ops.schedules import ScheduleConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=IMPALAConfig(
        learning_rate=5e-3,
        learning_rate_schedule=ScheduleConfig("linear"),
        discount=0.98,
        entropy_coef=0.005,
    ),
    run=RunConfig(num_envs=32, rollout_length=16, total_env_steps=500_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
