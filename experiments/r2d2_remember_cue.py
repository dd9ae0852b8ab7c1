"""R2D2 on a task that needs a memory, the RememberCue probe (Kapturowski et al. 2019)."""

from agents.r2d2 import R2D2Config
from jaxsrl import CheckpointConfig, EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("RememberCue", suite="probe"),
    network=NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=16),
    agent=R2D2Config(
        replay=ReplayConfig(
            capacity=20_000, batch_size=32, min_size=1_000, gradient_steps_per_env_step=1 / 32, priority_exponent=0.9
        ),
        epsilon_start=0.4,
        epsilon_end=0.4,
        apex_alpha=7.0,
        learning_rate=5e-3,
        discount=0.9,
        n_step=3,
        target_update_period=50,
        burn_in=4,
        sequence_length=9,
        stride=8,
    ),
    run=RunConfig(
        num_envs=16,
        rollout_length=8,
        total_env_steps=30_000,
        eval=EvalConfig(final_episodes=100),
        checkpoint=CheckpointConfig(interval_updates=0),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
