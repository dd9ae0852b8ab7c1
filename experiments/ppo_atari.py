"""PPO on an Atari game by CleanRL's recipe: clipped rewards, lives as episodes, no sticky actions (Schulman et al. 2017)."""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    # Sticky actions of Machado et al. 2018: --env.kwargs.repeat_action_probability 0.25. Evaluation plays whole games.
    env=EnvConfig("ALE/Pong-v5", kwargs='{"terminal_on_life_loss": true}'),
    network=NetworkConfig("nature_cnn", hidden_sizes=(512,), activation="relu"),
    agent=PPOConfig(
        learning_rate=2.5e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        clip_epsilon=0.1,
        value_clip_epsilon=0.1,
        reward_clip=1.0,
    ),
    run=RunConfig(
        num_envs=8,
        rollout_length=128,
        total_env_steps=10_000_000,
        max_policy_lag=0,
        eval=EvalConfig(final_episodes=10),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
