"""APPO, asynchronous PPO with V-trace targets, on CartPole-v1 (Petrenko et al. 2020)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=PPOConfig(
        learning_rate=7e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        discount=0.98,
        gae_lambda=0.8,
        entropy_coef=0.005,
        num_minibatches=8,
        targets="vtrace",
    ),
    # A policy lag of 2 or more makes it asynchronous.
    run=RunConfig(num_envs=128, rollout_length=32, total_env_steps=1_500_000, max_policy_lag=4),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
