"""Trajectories kept since the last auxiliary phase of PPG, one after another. Source: Cobbe et al. 2021, algorithm 1."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array, Metrics, Observation
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import map_leaves


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PhaseMemory:
    """Observations and value targets of N trajectories, and the metrics of the newest auxiliary phase.

    Attributes:
        observation: [N T, B, ...] each leaf, as the policy phase saw them (normalized, if they are).
        target_value: [N T, B] float32, of the policy phase.
        valid: [N T, B] bool, False where the step only reset, or its trajectory is not of the newest N updates.
        update: [N] int32, number of the update that stored each trajectory.
        metrics: Metrics of the newest auxiliary phase; zeros before the first.
    """

    observation: Observation
    target_value: Array
    valid: Array
    update: Array
    metrics: Metrics


def init_phase_memory(
    spec: EnvSpec, num_trajectories: int, num_steps: int, num_rows: int, metrics: Sequence[str]
) -> PhaseMemory:
    """Returns a memory of zeros.

    Args:
        spec: Specification of the environment, of observations as the policy phase sees them.
        num_trajectories: N.
        num_steps: T.
        num_rows: B.
        metrics: Names of the metrics.
    """
    shape = (num_trajectories * num_steps, num_rows)

    def zeros(leaf: Any) -> Array:
        return jnp.zeros((*shape, *leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype))

    return PhaseMemory(
        observation=map_leaves(zeros, spec.observation),
        target_value=jnp.zeros(shape, jnp.float32),
        valid=jnp.zeros(shape, bool),
        update=jnp.zeros(num_trajectories, jnp.int32),
        metrics={name: jnp.zeros((), jnp.float32) for name in metrics},
    )


def store_trajectory(
    memory: PhaseMemory, observation: Observation, target_value: Array, valid: Array, num_updates: Array
) -> PhaseMemory:
    """Returns the memory with the trajectory, of T steps, of the update with this number (int32 scalar), in place of the oldest.

    An update that was skipped because it was not finite stored nothing: what an older one left in its place does not count.
    """
    num_trajectories, num_steps = memory.update.shape[0], valid.shape[0]
    index = num_updates % num_trajectories
    start = index * num_steps
    update = memory.update.at[index].set(num_updates)
    # A larger number is of the run that a warm start took the memory from.
    is_recent = jnp.repeat((update > num_updates - num_trajectories) & (update <= num_updates), num_steps)

    def write(old: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=0)

    return PhaseMemory(
        observation=jax.tree.map(write, memory.observation, observation),
        target_value=write(memory.target_value, target_value),
        valid=write(memory.valid, valid) & is_recent[:, None],
        update=update,
        metrics=memory.metrics,
    )
