"""PPO on an Atari game (Schulman et al. 2017)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, EvaluationConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5", suite="atari"),
    network=NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu"),
    agent=PPOConfig(learning_rate=2.5e-4, learning_rate_schedule=ScheduleConfig("linear"), clip_epsilon=0.1),
    run=RunConfig(num_envs=16, rollout_length=128, total_env_steps=10_000_000, evaluation=EvaluationConfig(episodes=5)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
