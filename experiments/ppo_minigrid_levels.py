"""PPO with prioritized level replay on 500 levels of MiniGrid rooms (Jiang et al. 2021)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("MiniGrid-MultiRoom-N2-S4-v0", suite="minigrid", levels=500),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=PPOConfig(learning_rate=1e-3, learning_rate_schedule=ScheduleConfig("linear"), entropy_coef=0.01),
    run=RunConfig(num_envs=16, rollout_length=128, total_env_steps=1_000_000, eval=EvalConfig(final_episodes=100)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
