"""PPG on CartPole-v1 (Cobbe et al. 2021)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppg import PPGConfig
from agents.transforms.normalization import NormalizationConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1"),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=PPGConfig(
        learning_rate=7e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        discount=0.98,
        gae_lambda=0.8,
        entropy_coef=0.005,
        num_epochs=4,
        num_policy_phases=16,
        num_auxiliary_minibatches=2,
        normalization=NormalizationConfig(rewards=True),
    ),
    run=RunConfig(num_envs=128, rollout_length=32, total_env_steps=1_500_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
