"""The agent that a run trains: for single frames, and with replay around what learns from samples."""

import math
from typing import Any

import jax
import numpy as np

from agents.api import Agent, AnyAgent, ReplayAgent
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.config.run_config import RunConfig
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.plan.cost.channel_bytes import ReplayBytes
from jaxsrl.replay.on_device import with_device_replay
from jaxsrl.replay.schedule import steps_per_env_step
from jaxsrl.replay.state import Replayed


def learning_agent(
    agent: AnyAgent, spec: EnvSpec, num_rows: int, rollout_length: int, mesh: LearnerMesh | None = None
) -> Agent:
    """The agent whose `update` takes what a slot holds: trajectories of single frames.

    Args:
        agent: as it was made for the spec.
        spec: of all rows.
        num_rows: B.
        rollout_length: T.
        mesh: that samples are to be sharded over; None leaves that to the compiler.

    Raises:
        UserError: the sizes do not fit the agent's replay.
    """
    if not isinstance(agent, ReplayAgent):
        return with_stacked_frames(agent, spec)
    shapes = trajectory_shapes(agent, spec, num_rows, rollout_length)
    stacked = with_stacked_frames(agent, spec)
    return with_device_replay(stacked if mesh is None else mesh.shard_samples(stacked), shapes)


def replay_bytes(agent: AnyAgent, spec: EnvSpec, num_rows: int, rollout_length: int) -> ReplayBytes:
    """What the agent's replay holds and hands out; nothing is allocated. Arguments as of `learning_agent`."""
    if not isinstance(agent, ReplayAgent):
        return ReplayBytes()
    replay = agent.data
    state: Any = jax.eval_shape(learning_agent(agent, spec, num_rows, rollout_length).init, jax.random.key(0))
    held = _bytes(state.extra.buffer) if isinstance(state.extra, Replayed) else 0
    rows = replay.config.batch_size * replay.rows_per_window
    sample = _bytes(trajectory_shapes(agent, spec, rows, replay.num_steps))
    priorities = replay.config.batch_size * np.dtype(np.float32).itemsize
    drawn = float(steps_per_env_step(replay.config)) * num_rows * rollout_length
    return ReplayBytes(held, sample, priorities, drawn)


def kept_bytes(config: RunConfig, agent: AnyAgent, spec: EnvSpec) -> int:
    """Bytes of the experience that a run keeps on a node of a cluster, when all of it is there; 0 where it keeps none there."""
    return replay_bytes(agent, spec, config.num_envs, config.rollout_length).held if config.cluster_replay else 0


def _bytes(tree: Any) -> int:
    leaves: list[Any] = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
