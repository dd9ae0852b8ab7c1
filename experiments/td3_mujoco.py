"""TD3 on a MuJoCo task, one gradient step on 256 transitions for each env step (Fujimoto et al. 2018)."""

from agents.td3 import TD3Config
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("HalfCheetah-v5"),
    network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
    agent=TD3Config(
        # The authors' code starts with 25,000 random env steps.
        replay=ReplayConfig(capacity=1_000_000, batch_size=256, min_size=25_000, gradient_steps_per_env_step=1.0)
    ),
    run=RunConfig(
        num_envs=8,
        rollout_length=4,
        total_env_steps=1_000_000,
        checkpoint=CheckpointConfig(interval_updates=3_000, max_to_keep=1),
        eval=EvalConfig(final_episodes=10),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
