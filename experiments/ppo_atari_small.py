"""PPO on an Atari game with images of 42 x 42 pixels, for machines without an accelerator; otherwise as in ppo_atari.py.

An update costs about a sixth of that with 84 x 84 pixels. Actions are sticky (Machado et al. 2018), and episodes are whole games.
"""

from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5", suite="atari_vector", kwargs='{"screen_size": 42, "repeat_action_probability": 0.25}'),
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
        total_env_steps=3_000_000,
        max_policy_lag=0,
        eval=EvalConfig(final_episodes=10),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
