"""Recording of what a checkpoint's replay buffer contains."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.api import ReplayAgent, Trajectory
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.names import REPLAY
from jaxsrl.checkpoints.store import Arrays, RemovedCheckpointError, load_in_use
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import from_json
from jaxsrl.datasets.dataset import Dataset, open_dataset
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import DatasetWriter, make_dataset
from jaxsrl.evaluation.load_agent import LoadedAgent
from jaxsrl.replay.client import buffer_shapes
from jaxsrl.replay.state import Buffer
from jaxsrl.training.dataset_replay import own_replay
from jaxsrl.training.run_state import restore_buffer

_STEPS_AT_ONCE = 4096


def record_replay(loaded: LoadedAgent, out: Path, origin: dict[str, Any]) -> Dataset:
    """Writes the steps of a checkpoint's replay buffer, oldest first, each row of the run as a row of the dataset.

    Args:
        loaded: agent and environments of the checkpoint.
        out: directory to create.
        origin: Name of the acting policy, for the manifest.

    Raises:
        UserError: If the checkpoint has no replay buffer of one agent, the run has removed it, or `out` has files.
    """
    arrays = _read_arrays(loaded.checkpoint)
    if not any(name.startswith(REPLAY) for name in arrays):
        raise UserError(
            f"{loaded.checkpoint} has no replay buffer: expected the newest checkpoint of a run that learns from replay and has "
            f"checkpoint.include_replay; older ones and models have none; if the run trains, record again"
        )
    if not isinstance(loaded.agent, ReplayAgent):
        raise UserError(
            f"agent {loaded.agent.name} has several policies, whose buffers are not recorded: use --run.record"
        )
    spec, config = loaded.source.spec(), from_json(RunConfig, loaded.metadata["experiment"]["run"])
    agent = with_stacked_frames(loaded.agent, spec)
    assert isinstance(agent, ReplayAgent)
    buffer = _read_buffer(agent, spec, config, arrays)
    env = loaded.metadata["experiment"].get("env")
    manifest = Manifest(spec, config.num_envs, dict(agent.extras), env=env, origin=origin)
    with make_dataset(out, manifest) as writer:
        _append_ring(writer, buffer)
    return open_dataset(out)


def _read_arrays(checkpoint: Path) -> Arrays:
    """Reads the checkpoint that the agent is from; a run that trains may have a newer one by now."""
    try:
        return load_in_use(checkpoint, with_experience=True)[0]
    except RemovedCheckpointError as error:
        raise UserError(
            f"the run removed {checkpoint} before its replay buffer was read: record again, or let the run keep more checkpoints "
            f"(--checkpoint.max-to-keep)"
        ) from error


def _read_buffer(agent: ReplayAgent, spec: Any, config: RunConfig, arrays: Arrays) -> Buffer:
    shapes = trajectory_shapes(agent, spec, config.num_envs, config.rollout_length)
    return restore_buffer(buffer_shapes(own_replay(agent.data, config.dataset), shapes), arrays)


def _append_ring(writer: DatasetWriter, buffer: Buffer) -> None:
    """Appends all steps of the ring in their order; frames before the first step are not recorded."""
    storage, position = buffer.storage, buffer.selection.position
    size, count = len(storage.reward), int(position.num_steps)
    for begin in range(0, count, _STEPS_AT_ONCE):
        steps = np.arange(begin, min(begin + _STEPS_AT_ONCE, count)) - count + int(position.next_step)
        writer.append(_steps_of_ring(storage, steps % size, size, is_newest=begin + _STEPS_AT_ONCE >= count))


def _steps_of_ring(storage: Trajectory, steps: np.ndarray, size: int, is_newest: bool) -> Trajectory:
    """Returns the steps at these places and the observation after them, which is at place `size` for the newest step."""
    after = size if is_newest else (steps[-1] + 1) % size
    observed = np.append(steps, after)
    rest = dataclasses.replace(storage, observation=(), is_first=(), agent_state=())
    taken: Trajectory = jax.tree.map(lambda ring: ring[steps], rest)
    observation, is_first = jax.tree.map(lambda ring: ring[observed], (storage.observation, storage.is_first))
    return dataclasses.replace(taken, observation=observation, is_first=is_first)
