"""A2C with synchronous gradients on CartPole-v1 (Mnih et al. 2016)."""

from agents.a2c import A2CConfig
from agents.ops.schedules import ScheduleConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

# A3C: --plan central --learner.gradients asynchronous --learner.num-replicas 2 --agent.learning-rate 2e-3
EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=A2CConfig(
        learning_rate=5e-3,
        learning_rate_schedule=ScheduleConfig("linear"),
        discount=0.98,
        gae_lambda=0.9,
        entropy_coef=0.005,
    ),
    run=RunConfig(num_envs=32, rollout_length=16, total_env_steps=500_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
