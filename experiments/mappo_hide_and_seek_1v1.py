"""MAPPO on hide-and-seek with one box and one ramp, 1 against 1, on the planar engine: days of two cores (Baker et al. 2020)."""

import dataclasses

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

# Horizon, things and the number of environments are those of VACL (Chen et al. 2021, arXiv:2111.04613), as published with its
# code; it takes 15 epochs. Its 4e8 env steps are 8e8 of agents.
EXPERIMENT = Experiment(
    env=EnvConfig(
        "base",
        "hide_and_seek",
        '{"engine": "planar", "hiders": 1, "seekers": 1, "boxes": [1, 1], "one_door": 1.0, "horizon": 60, "global_state": true}',
        info_fields=PHASE_FIELDS,
        stagger=60,
    ),
    network=NetworkConfig("entities", hidden_sizes=(32, 32), activation="relu", entity_heads=0),
    agent=dataclasses.replace(
        mappo_hide_and_seek.EXPERIMENT.agent, discount=0.99, num_epochs=2, num_minibatches=2, chunk_length=None
    ),
    run=RunConfig(
        num_envs=600,  # rows: 300 environments of two agents
        rollout_length=60,
        total_env_steps=800_000_000,
        pool=PoolConfig(num_workers=1),
        checkpoint=CheckpointConfig(interval_updates=500),
        metrics=MetricsConfig(interval_seconds=30.0),
        eval=EvalConfig(final_episodes=20),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
