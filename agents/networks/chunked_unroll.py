"""Trajectories cut into chunks of time, as networks with memory learn from them.

A chunk begins with the state that the newest parameters reach there from the state stored with the trajectory, so it is never
older than one update; `burn_in` steps before it are run again at every gradient step, without gradient, so that the state
follows the parameters within the update too (Kapturowski et al. 2019, R2D2, section 3). Gradients end where a chunk begins.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, Observation, Params
from agents.networks.actor_critic import ActorCritic
from envpool_bridge.errors import UserError


class ChunkSizes(NamedTuple):
    """Attributes: length: steps of a chunk; burn_in: steps before it that are run again, at most `length`."""

    length: int
    burn_in: int = 0


def validate_chunk_sizes(length: int | None, burn_in: int) -> None:
    """Raises UserError unless these are sizes of chunks; a length of None is a whole trajectory."""
    if length is not None and length < 1:
        raise UserError(f"chunk_length must be at least 1, or None for whole trajectories: got {length}")
    if not 0 <= burn_in <= (length or 0):
        raise UserError(
            f"burn_in must lie between 0 and chunk_length: got {burn_in} and {length}; a whole trajectory has nothing before "
            f"it to burn in"
        )


class Unrolled(NamedTuple):
    """A trajectory under newest parameters.

    Attributes:
        parameters: of the policy, [T, B, P].
        value: [T+1, B].
        states: [C, B, ...] each, where the burn-in of each of C chunks begins; the first chunk has none, and begins itself.
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
    """Runs the network over a whole trajectory, and keeps the states that its chunks begin with.

    Args:
        net: with memory.
        params: of the network.
        observation: [T+1, B, ...] a leaf.
        is_first: [T+1, B] bool.
        state: [B, ...] each, before the first step.
        sizes: of the chunks.

    Raises:
        UserError: the length does not divide T.
    """
    num_steps = is_first.shape[0] - 1
    if num_steps % sizes.length:
        raise UserError(
            f"chunk_length must divide rollout_length: got {sizes.length} and {num_steps}; a network with memory learns from "
            f"whole chunks of time"
        )
    chunked = jax.tree.map(lambda x: x[:-1].reshape((-1, sizes.length, *x.shape[1:])), (observation, is_first))
    cut = sizes.length - sizes.burn_in

    def chunk(state: AgentState, inputs: Any) -> tuple[AgentState, Any]:
        begin, inner = state, state
        outputs: list[tuple[Array, Array]] = []
        for place in (slice(0, cut), slice(cut, None)):
            inner = state
            steps, first = jax.tree.map(lambda x, place=place: x[place], inputs)
            if first.shape[0]:
                parameters, value, state = net.unroll(params, steps, state, first)
                outputs.append((parameters, value))
        joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
        return state, (joined, begin, inner)

    state, ((parameters, value), begins, inners) = jax.lax.scan(chunk, state, chunked)
    if sizes.burn_in:
        begins = jax.tree.map(lambda begin, inner: jnp.concatenate([begin[:1], inner[:-1]]), begins, inners)
    newest = jax.tree.map(lambda x: x[-1:], (observation, is_first))
    _, last, _ = net.unroll(params, newest[0], state, newest[1])
    whole = value.reshape((num_steps, *value.shape[2:]))
    return Unrolled(parameters.reshape((num_steps, *parameters.shape[2:])), jnp.concatenate([whole, last]), begins)


def take_chunks(tree: Any, chunks: Array, length: int) -> Any:
    """Some chunks of [T, B, ...] leaves, side by side: [length, B * m, ...] for `chunks` [m], m numbers of chunks.

    Rows stay the major part of the joined axis: whatever devices they are sharded over keep their own.
    """

    def taken(x: Array) -> Array:
        chosen = x.reshape((-1, length, *x.shape[1:]))[chunks]
        return jnp.moveaxis(chosen, 0, 2).reshape((length, -1, *x.shape[2:]))

    return jax.tree.map(taken, tree)


def chunk_states(
    net: ActorCritic,
    params: Params,
    observation: Observation,
    is_first: Array,
    states: AgentState,
    chunks: Array,
    sizes: ChunkSizes,
) -> AgentState:
    """The states, [B * m, ...] each, that some chunks begin with under `params`: after their burn-in. No gradient passes.

    Args:
        net: with memory.
        params: of the network.
        observation: [T, B, ...] a leaf.
        is_first: [T, B] bool.
        states: [C, B, ...] each, of `unroll_in_chunks`.
        chunks: [m] int32.
        sizes: of the chunks.
    """

    def side_by_side(x: Array) -> Array:
        return jnp.moveaxis(x[chunks], 0, 1).reshape((-1, *x.shape[2:]))

    state = jax.tree.map(side_by_side, states)
    if not sizes.burn_in:
        return jax.lax.stop_gradient(state)
    before = jnp.maximum(chunks - 1, 0)
    steps, first = jax.tree.map(
        lambda x: x[sizes.length - sizes.burn_in :], take_chunks((observation, is_first), before, sizes.length)
    )
    _, _, burned = net.unroll(params, steps, state, first)
    begins = jnp.tile(chunks == 0, is_first.shape[1])  # the trajectory's first chunk has nothing before it

    def chosen(old: Array, new: Array) -> Array:
        return jnp.where(begins.reshape((-1,) + (1,) * (old.ndim - 1)), old, new)

    return jax.lax.stop_gradient(jax.tree.map(chosen, state, burned))
