"""Chunks of trajectories for truncated backpropagation through time.

Each update unrolls the trajectory with the newest parameters from its stored state. The initial state of a chunk comes from this
unroll, so it is at most one update old. Every gradient step repeats the `burn_in` steps before a chunk without gradient, so the
state follows the parameters within the update (Kapturowski et al. 2019, R2D2, section 3). Gradients end at the start of a chunk.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, Observation, Params
from agents.networks.actor_critic import ActorCritic
from envpool_bridge.errors import UserError


class ChunkSizes(NamedTuple):
    """Attributes: length: steps of a chunk; burn_in: repeated steps before it, at most `length`."""

    length: int
    burn_in: int = 0


def validate_chunk_sizes(length: int | None, burn_in: int) -> None:
    """Raises UserError unless the sizes are valid; a length of None is a whole trajectory."""
    if length is not None and length < 1:
        raise UserError(f"chunk_length must be at least 1, or None for whole trajectories: got {length}")
    if not 0 <= burn_in <= (length or 0):
        raise UserError(
            f"burn_in must lie between 0 and chunk_length: got {burn_in} and {length}; a whole trajectory has no "
            f"steps before it"
        )


class Unrolled(NamedTuple):
    """Outputs of a trajectory with the newest parameters.

    Attributes:
        parameters: Parameters of the policy, [T, B, P].
        value: [T+1, B].
        states: States [C, B, ...] each at the start of the burn-in of each of C chunks; the first chunk has no burn-in.
    """

    parameters: Array
    value: Array
    states: AgentState


def unroll_in_chunks(
    net: ActorCritic,
    params: Params,
    observation: Observation,
    is_first: Array,
    state: AgentState,
    sizes: ChunkSizes,
) -> Unrolled:
    """Runs the network over a whole trajectory and records the initial states of its chunks.

    Args:
        net: Recurrent network.
        params: Parameters of the network.
        observation: Leaves [T+1, B, ...].
        is_first: [T+1, B] bool.
        state: State before the first step, [B, ...] each.
        sizes: Sizes of the chunks.

    Raises:
        UserError: If the length does not divide T.
    """
    num_steps = is_first.shape[0] - 1
    if num_steps % sizes.length:
        raise UserError(
            f"chunk_length must divide rollout_length: got {sizes.length} and {num_steps}; a recurrent network trains on "
            f"whole chunks"
        )
    chunked = jax.tree.map(lambda x: x[:-1].reshape((-1, sizes.length, *x.shape[1:])), (observation, is_first))
    cut = sizes.length - sizes.burn_in

    def chunk(state: AgentState, inputs: Any) -> tuple[AgentState, Any]:
        start, inner = state, state
        outputs: list[tuple[Array, Array]] = []
        for part in (slice(0, cut), slice(cut, None)):
            inner = state
            steps, first = jax.tree.map(lambda x, part=part: x[part], inputs)
            if first.shape[0]:
                parameters, value, state = net.unroll(params, steps, state, first)
                outputs.append((parameters, value))
        joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
        return state, (joined, start, inner)

    state, ((parameters, value), starts, inners) = jax.lax.scan(chunk, state, chunked)
    if sizes.burn_in:
        starts = jax.tree.map(lambda start, inner: jnp.concatenate([start[:1], inner[:-1]]), starts, inners)
    newest = jax.tree.map(lambda x: x[-1:], (observation, is_first))
    _, last, _ = net.unroll(params, newest[0], state, newest[1])
    values = value.reshape((num_steps, *value.shape[2:]))
    return Unrolled(parameters.reshape((num_steps, *parameters.shape[2:])), jnp.concatenate([values, last]), starts)


def take_chunks(tree: Any, chunks: Array, length: int) -> Any:
    """Returns chunks `chunks` [m] of leaves [T, B, ...], joined along the rows: [length, B * m, ...].

    Rows stay the major part of the joined axis, so sharded rows stay on their devices.
    """

    def take(x: Array) -> Array:
        chosen = x.reshape((-1, length, *x.shape[1:]))[chunks]
        return jnp.moveaxis(chosen, 0, 2).reshape((length, -1, *x.shape[2:]))

    return jax.tree.map(take, tree)


def chunk_states(
    net: ActorCritic,
    params: Params,
    observation: Observation,
    is_first: Array,
    states: AgentState,
    chunks: Array,
    sizes: ChunkSizes,
) -> AgentState:
    """Returns the initial states [B * m, ...] each of chunks under `params`, after their burn-in, without gradient.

    Args:
        net: Recurrent network.
        params: Parameters of the network.
        observation: Leaves [T, B, ...].
        is_first: [T, B] bool.
        states: States [C, B, ...] each from `unroll_in_chunks`.
        chunks: [m] int32.
        sizes: Sizes of the chunks.
    """

    def join(x: Array) -> Array:
        return jnp.moveaxis(x[chunks], 0, 1).reshape((-1, *x.shape[2:]))

    state = jax.tree.map(join, states)
    if not sizes.burn_in:
        return jax.lax.stop_gradient(state)
    before = jnp.maximum(chunks - 1, 0)
    steps, first = jax.tree.map(
        lambda x: x[sizes.length - sizes.burn_in :], take_chunks((observation, is_first), before, sizes.length)
    )
    _, _, burned = net.unroll(params, steps, state, first)
    is_start = jnp.tile(chunks == 0, is_first.shape[1])  # the first chunk has no burn-in

    def choose(old: Array, new: Array) -> Array:
        return jnp.where(is_start.reshape((-1,) + (1,) * (old.ndim - 1)), old, new)

    return jax.lax.stop_gradient(jax.tree.map(choose, state, burned))
