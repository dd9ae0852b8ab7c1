"""SAC on a MuJoCo task (Haarnoja et al. 2018)."""

from agents.sac import SACConfig
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("HalfCheetah-v5"),
    network=NetworkConfig(hidden_sizes=(256, 256), activation="relu"),
    agent=SACConfig(
        # Haarnoja et al. 2018, table 1: one gradient step on 256 transitions for each env step; Adam 3e-4 for all.
        replay=ReplayConfig(capacity=1_000_000, batch_size=256, min_size=10_000, gradient_steps_per_env_step=1.0)
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
