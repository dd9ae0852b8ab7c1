"""REINFORCE with a baseline on CartPole-v1, with trajectories longer than episodes (Williams 1992)."""

from agents.ops.schedules import ScheduleConfig
from agents.reinforce import REINFORCEConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=REINFORCEConfig(
        learning_rate=1e-2, learning_rate_schedule=ScheduleConfig("linear"), discount=0.99, entropy_coef=0.0
    ),
    run=RunConfig(num_envs=16, rollout_length=1024, total_env_steps=1_000_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
