"""QMIX on a game of two agents with known values (Rashid et al. 2018)."""

from agents.multi_agent.qmix import QMIXConfig
from jaxsrl import CheckpointConfig, EnvConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    # Without the global state, the mixer sees what all agents see.
    env=EnvConfig("TwoStepUnequal", suite="probe", kwargs='{"global_state": true}'),
    network=NetworkConfig(hidden_sizes=(32,)),
    agent=QMIXConfig(
        learning_rate=3e-3,
        target_update_period=20,
        epsilon_start=1.0,
        epsilon_end=1.0,  # all pairs equally often, as the paper explores this game
        replay=ReplayConfig(capacity=8_192, batch_size=64, min_size=1_024, gradient_steps_per_env_step=1 / 32),
    ),
    run=RunConfig(
        num_envs=64, rollout_length=8, total_env_steps=60_000, checkpoint=CheckpointConfig(interval_updates=0)
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
