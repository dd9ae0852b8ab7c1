"""PPO on a MiniGrid task that is reached in stages (Schulman et al. 2017)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from jaxsrl import CurriculumConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig(stages=tuple(f"MiniGrid-DoorKey-{size}x{size}-v0" for size in (5, 6, 8))),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=PPOConfig(learning_rate=1e-3, learning_rate_schedule=ScheduleConfig("linear"), entropy_coef=0.01),
    run=RunConfig(
        num_envs=16,
        rollout_length=128,
        total_env_steps=500_000,
        eval=EvalConfig(every=20_000, episodes=20, final_episodes=100),
        curriculum=CurriculumConfig(returns=(0.8, 0.8)),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
