"""Minibatches of one trajectory, cut along time or along rows."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from agents.api import Action, AgentState, Array, Observation
from agents.ops.policy_gradient import SurrogateCoefficients
from envpool_bridge.errors import UserError

Axis = Literal["time", "rows"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs of PPO's loss for each step; [T, B, ...] each leaf.

    Attributes:
        observation: Observation that was acted on.
        action: Action that was chosen.
        proximal_log_prob: Log-probability of the action under the policy around which ratios are clipped, nats.
        importance: Probability under that policy divided by the probability when the action was chosen.
        old_value: Output of the network before the update.
        advantage: Reward units.
        target_value: Target value in the units of the network's output: reward units, or normalized.
        weight: 0 where the step only reset, or is too stale.
        is_first: Whether the observation is the first of an episode.
        agent_state: State before each chunk, [C, B, ...] each for C chunks of a trajectory (see
            `agents.networks.chunked_unroll`); [B, ...] each in the loss; () for a network without memory.
    """

    observation: Observation
    action: Action
    proximal_log_prob: Array
    importance: Array
    old_value: Array
    advantage: Array
    target_value: Array
    weight: Array
    is_first: Array
    agent_state: AgentState = ()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Minibatches:
    """All minibatches of an update of PPO.

    Attributes:
        batch: [T, B, ...] each.
        order: [num_gradient_steps, T / num_minibatches] int32, the steps of time in each minibatch. For a network with memory,
            [num_gradient_steps, C / num_minibatches] int32, the chunks in each. For minibatches of rows see `take_rows`.
        coefficients: Those of the update.
        rate_scale: Factor of the learning rate, of `adaptive_kl`.
    """

    batch: Batch
    order: Array
    coefficients: SurrogateCoefficients
    rate_scale: Array | None = None


def validate_minibatches(
    axis: Axis, num_minibatches: int, length: int, num_rows: int, length_name: str = "rollout_length"
) -> None:
    """Raises UserError unless `num_minibatches` divides the length (steps of time, or chunks of them) or the rows."""
    if axis == "time" and length % num_minibatches:
        raise UserError(
            f"num_minibatches must divide {length_name}: got {num_minibatches} and {length}; minibatches are cut along time; "
            f"minibatch_axis='rows' cuts them along the rows"
        )
    if axis == "rows" and num_rows % num_minibatches:
        raise UserError(
            f"num_minibatches must divide the number of rows (num_envs): got {num_minibatches} and {num_rows}; minibatches are "
            f"cut along rows; minibatch_axis='time' cuts them along time (with memory, its chunks: chunk_length)"
        )


def validate_standardized(num_minibatches: int, num_steps: int, num_rows: int) -> None:
    """Raises UserError where minibatches have one step, whose standardized advantage is always 0."""
    if num_steps * num_rows == num_minibatches:
        raise UserError(
            f"normalize_advantage needs minibatches of at least 2 steps, since a single advantage minus its mean is 0: got "
            f"{num_minibatches} minibatches of {num_steps} steps x {num_rows} rows; use fewer agent.num_minibatches, more "
            f"run.num_envs, or no agent.normalize_advantage"
        )


def shuffled_minibatches(
    key: Array, length: int, num_epochs: int, num_minibatches: int, length_name: str = "rollout_length"
) -> Array:
    """Returns [num_epochs * num_minibatches, length / num_minibatches] int32: each epoch's permutation of time, cut.

    Only time is permuted and cut. B, which may be sharded over devices, stays in place, so nothing is gathered.

    Args:
        key: Consumed.
        length: Steps of time, or chunks of them.
        num_epochs: Permutations.
        num_minibatches: Parts of each permutation.
        length_name: Name of `length` in the error.

    Raises:
        UserError: `num_minibatches` does not divide `length`.
    """
    validate_minibatches("time", num_minibatches, length, 0, length_name)
    keys = jax.random.split(key, num_epochs)
    order = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, length))(keys)
    return order.reshape(num_epochs * num_minibatches, length // num_minibatches)


def shuffled_row_minibatches(key: Array, num_rows: int, num_epochs: int, num_minibatches: int) -> Array:
    """Returns [num_epochs * num_minibatches, num_rows / num_minibatches] int32: the row of each group, for `take_rows`.

    A group is `num_minibatches` adjacent rows, and gives one row to each minibatch of an epoch. Rows may be sharded over devices in
    contiguous blocks: no row leaves its device if groups do not cross blocks, and minibatches are the same for any number of
    devices. A permutation of all rows would move them between devices.

    Args:
        key: Consumed.
        num_rows: B.
        num_epochs: Permutations of each group.
        num_minibatches: Size of a group.

    Raises:
        UserError: `num_minibatches` does not divide `num_rows`.
    """
    validate_minibatches("rows", num_minibatches, 0, num_rows)
    num_groups = num_rows // num_minibatches
    members = jnp.broadcast_to(jnp.arange(num_minibatches, dtype=jnp.int32)[:, None], (num_minibatches, num_groups))
    keys = jax.random.split(key, num_epochs)
    order = jax.vmap(lambda epoch_key: jax.random.permutation(epoch_key, members, axis=0, independent=True))(keys)
    return order.reshape(num_epochs * num_minibatches, num_groups)


def take_steps(tree: Any, chosen: Array) -> Any:
    """Returns the steps `chosen` [m] int32 of leaves [T, B, ...]: [m, B, ...]."""
    return jax.tree.map(lambda x: x[chosen], tree)


def take_rows(tree: Any, chosen: Array, num_minibatches: int) -> Any:
    """Returns one row of each group of leaves [T, B, ...]: [T, B / num_minibatches, ...].

    Args:
        tree: Leaves of B rows on the second axis.
        chosen: [B / num_minibatches] int32, see `shuffled_row_minibatches`.
        num_minibatches: Rows of a group.
    """

    def take(x: Array) -> Array:
        groups = x.reshape((x.shape[0], -1, num_minibatches, *x.shape[2:]))
        index = chosen.reshape((1, -1, 1) + (1,) * (x.ndim - 2))
        return jnp.take_along_axis(groups, index, axis=2)[:, :, 0]

    return jax.tree.map(take, tree)
