"""The agent that a run trains: the chain of wrappers around an algorithm's update."""

import math
from functools import partial
from typing import Any

import jax
import numpy as np

from agents.api import Agent, AnyAgent, ReplayAgent
from agents.transforms.frame_stacking import stacked_trajectory, with_stacked_frames
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.collect.slot_layout import trajectory_shapes
from jaxsrl.config.run_config import RunConfig
from jaxsrl.learner.finite_updates import with_finite_updates
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.plan.cost.channel_bytes import ReplayBytes
from jaxsrl.replay.on_device import with_device_replay
from jaxsrl.replay.schedule import steps_per_env_step
from jaxsrl.replay.state import experience, holds_buffer


def learning_agent(
    agent: AnyAgent, spec: EnvSpec, num_rows: int, rollout_length: int, mesh: LearnerMesh | None = None
) -> Agent:
    """Returns the agent whose `update` takes the contents of a slot: trajectories of single frames.

    This is the whole chain of wrappers around an algorithm's `update`, from the inside out. The first three belong to the agent
    as it is made; each is there only where its configuration asks for it:

    1. `agents.transforms.normalization`: observations and rewards by running statistics, with a random start.
    2. `agents.transforms.on_policy_agent`: clipped rewards.
    3. `agents.transforms.multi_policy`: several policies, each learning from its own rows.
    4. `agents.transforms.frame_stacking`: stacks of frames, from single frames.
    5. `LearnerMesh.shard_samples`: with replay, a share of each sample on every device.
    6. `jaxsrl.replay.on_device`: with replay, insertion of the trajectory, and the gradient steps that are due.
    7. `jaxsrl.learner.finite_updates`: the state before, where the new one is not finite.

    Policies among several that learn from replay have step 6 within step 3, so their buffers keep stacks of frames.
    With replay on the host, `jaxsrl.learner.host_replay` takes the place of the last three. The plan `central` uses the parts of
    the update that an agent offers, after steps 1 to 4; its server has the last.

    Args:
        agent: Agent made for the spec.
        spec: Specification of all rows.
        num_rows: B.
        rollout_length: T.
        mesh: Devices that samples are sharded over; None leaves that to the compiler.

    Raises:
        UserError: If the sizes do not fit the agent's replay.
    """
    if isinstance(agent, Agent) and agent.bind_replay is not None:
        slots = trajectory_shapes(agent, spec, num_rows, rollout_length)
        batch = jax.eval_shape(partial(stacked_trajectory, spec.observation), slots)
        agent = agent.bind_replay(with_device_replay, batch)
    agent = with_stacked_frames(agent, spec)
    if isinstance(agent, ReplayAgent):
        agent = agent if mesh is None else mesh.shard_samples(agent)
        agent = with_device_replay(agent, trajectory_shapes(agent, spec, num_rows, rollout_length))
    return with_finite_updates(agent)


def replay_bytes(agent: AnyAgent, spec: EnvSpec, num_rows: int, rollout_length: int) -> ReplayBytes:
    """Returns the sizes of the agent's replay buffer and samples; nothing is allocated. Arguments as in `learning_agent`."""
    if isinstance(agent, Agent) and agent.bind_replay is None:
        return ReplayBytes()
    state: Any = jax.eval_shape(learning_agent(agent, spec, num_rows, rollout_length).init, jax.random.key(0))
    held = _bytes(experience(state.extra)) if holds_buffer(state.extra) else 0
    if isinstance(agent, Agent):
        return ReplayBytes(held)
    replay = agent.data
    rows = replay.config.batch_size * replay.agents_per_window
    sample = _bytes(trajectory_shapes(agent, spec, rows, replay.sequence_length))
    priorities = replay.config.batch_size * np.dtype(np.float32).itemsize
    drawn = float(steps_per_env_step(replay.config)) * num_rows * rollout_length
    return ReplayBytes(held, sample, priorities, drawn)


def kept_bytes(config: RunConfig, agent: AnyAgent, spec: EnvSpec) -> int:
    """Returns the bytes of a full replay buffer on a cluster node; 0 if the run has none."""
    return replay_bytes(agent, spec, config.num_envs, config.rollout_length).held if config.replay.is_remote else 0


def _bytes(tree: Any) -> int:
    leaves: list[Any] = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
