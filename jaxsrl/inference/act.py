"""One jitted call of an agent's `act`, with a key a row that depends on nothing but run, row and step."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import AgentState, AnyAgent, Array, Mode, Params
from envpool_bridge.slot_views import ActRows
from envpool_bridge.tree import write


class ActOnRows(Protocol):
    """Actions for rows.

    Args: params; observation [R, ...]; agent_state; is_first [R]; row_keys [R] typed keys; steps [R] uint32, the step of
    the run each row is at. Returns: action [R, ...], extras, next agent_state.
    """

    def __call__(
        self,
        params: Params,
        observation: np.ndarray,
        agent_state: AgentState,
        is_first: np.ndarray,
        row_keys: Array,
        steps: np.ndarray,
    ) -> tuple[Array, dict[str, Array], AgentState]: ...


def make_act(agent: AnyAgent, mode: Mode = Mode.SAMPLE) -> ActOnRows:
    """The agent's `act`, jitted; compiled once a number of rows."""

    def act_on_rows(
        params: Params,
        observation: Array,
        agent_state: AgentState,
        is_first: Array,
        row_keys: Array,
        steps: Array,
    ) -> tuple[Array, dict[str, Array], AgentState]:
        keys = jax.vmap(jax.random.fold_in)(row_keys, steps)
        return agent.act(params, observation, agent_state, is_first, keys, mode)

    return jax.jit(act_on_rows)


def act_in_slot(
    act: ActOnRows, params: Params, rows: ActRows, agent_state: AgentState, keys: Array, steps: np.ndarray, version: int
) -> AgentState:
    """Acts for rows of a slot at one step, and writes what the slot keeps of it.

    Args:
        act: of `make_act`.
        params: to act with.
        rows: of the slot, at that step.
        agent_state: before the step.
        keys: [R] typed, of the rows; not consumed.
        steps: [R] uint32, of the run.
        version: of the parameters.

    Returns:
        The state after the step.
    """
    action, extras, after = act(params, rows.observation, agent_state, rows.is_first, keys, steps)
    # Fetching the results also proves that the observations, which may be aliased, have been read.
    action, extras = fetched((action, extras))
    rows.write(action, extras, version)
    if rows.state_before is not None:
        write(rows.state_before, fetched(agent_state))
    if rows.state_after is not None:
        write(rows.state_after, fetched(after))
    return after


def fetched(tree: Any) -> Any:
    """Arrays of a device as read-only numpy arrays.

    As `jax.device_get`, which takes 25 us longer for two small arrays on a processor: as long as a third of the call.
    """
    leaves, structure = jax.tree.flatten(tree)
    for leaf in leaves:
        if _is_elsewhere(leaf):
            leaf.copy_to_host_async()  # all at once, then each is waited for
    return structure.unflatten([np.asarray(leaf) for leaf in leaves])


def _is_elsewhere(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and next(iter(leaf.devices())).platform != "cpu"


def row_keys(run_key: Array, rows: range) -> Array:
    """[R] typed keys: the run's key folded with each row's id. `run_key` may be used again for other rows only."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(run_key, jnp.arange(rows.start, rows.stop, dtype=jnp.uint32))


def take_rows(agent_state: AgentState, rows: slice) -> AgentState:
    """The state of some rows, of [B, ...] a leaf."""
    return jax.tree.map(lambda leaf: leaf[rows], agent_state)
