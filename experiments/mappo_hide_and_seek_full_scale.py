"""MAPPO on hide-and-seek with the published sizes, on the planar engine (Mei et al. 2024)."""

import dataclasses

from agents.ops.optimizers import OptimizerConfig
from envpool_bridge.envs.suites.hide_and_seek import PHASE_FIELDS
from experiments import mappo_hide_and_seek
from jaxsrl import (
    CheckpointConfig,
    EnvConfig,
    EvalConfig,
    Experiment,
    MetricsConfig,
    NetworkConfig,
    PoolConfig,
    RunConfig,
)
from jaxsrl.experiment import cli

# 640,000 agent steps an update (64,000 chunks of 10), for days.
EXPERIMENT = Experiment(
    env=EnvConfig(
        "randomwalls", "hide_and_seek", '{"engine": "planar", "global_state": true}', info_fields=PHASE_FIELDS
    ),
    network=NetworkConfig(
        "entities", hidden_sizes=(128, 256), activation="relu", core="lstm", core_size=256, circular=("lidar",)
    ),
    agent=dataclasses.replace(
        mappo_hide_and_seek.EXPERIMENT.agent,
        optimizer=OptimizerConfig(weight_decay=1e-6, max_grad_norm=5.0),
        num_epochs=4,  # SRL takes a step on each batch, and every batch four times
        num_minibatches=1,
    ),
    run=RunConfig(
        num_envs=4000,  # rows: 1,000 environments of four agents
        rollout_length=160,
        total_env_steps=20_000_000_000,
        pool=PoolConfig(num_workers=8),
        checkpoint=CheckpointConfig(interval_updates=1000),
        metrics=MetricsConfig(interval_seconds=30.0),
        eval=EvalConfig(final_episodes=20),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
