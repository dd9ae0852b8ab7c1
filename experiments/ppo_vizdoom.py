"""PPO on a ViZDoom scenario (Schulman et al. 2017)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from agents.transforms.normalization import NormalizationConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("VizdoomBasic-v1", suite="vizdoom"),
    network=NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu"),
    agent=PPOConfig(
        learning_rate=2.5e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        entropy_coef=0.01,
        # Rewards differ by a factor of 100 between scenarios; variables are health and ammunition as they are counted.
        normalization=NormalizationConfig(observations=True, rewards=True),
    ),
    run=RunConfig(num_envs=16, rollout_length=128, total_env_steps=2_000_000, eval=EvalConfig(final_episodes=10)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
