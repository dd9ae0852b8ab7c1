"""PPO on CartPole-v1 (Schulman et al. 2017)."""

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
    ),
    run=RunConfig(num_envs=128, rollout_length=32, total_env_steps=1_500_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
