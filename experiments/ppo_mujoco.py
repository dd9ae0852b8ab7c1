"""PPO on a MuJoCo task (Schulman et al. 2017)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from agents.transforms.normalization import NormalizationConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("HalfCheetah-v5"),
    # With a deviation of 1 the bounds of actions would clip a third of all samples.
    network=NetworkConfig(hidden_sizes=(64, 64), initial_log_std=-0.5),
    agent=PPOConfig(
        learning_rate=3e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        entropy_coef=0.0,
        num_epochs=10,
        num_minibatches=32,
        normalization=NormalizationConfig(observations=True, rewards=True),
    ),
    run=RunConfig(
        num_envs=32,
        rollout_length=64,
        total_env_steps=1_000_000,
        max_policy_lag=0,
        eval=EvalConfig(final_episodes=10),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
