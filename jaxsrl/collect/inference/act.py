"""Jitted call of an agent's `act`. Each row's key depends only on run, row and step."""

from typing import Any, Protocol

import jax
import numpy as np

from agents.api import AgentState, AnyAgent, Array, Mode, Params
from envpool_bridge.shm.slots import ActRows
from envpool_bridge.spec.tree import write
from jaxsrl.collect.inference.packed_act import PackedAct
from jaxsrl.machine.devices import start_copies_to_host


class ActOnRows(Protocol):
    """Actions for rows.

    Args:
        params: parameters that act.
        observation: [R, ...].
        agent_state: recurrent state.
        is_first: [R].
        keys: [R] typed, or [N] where `rows` selects from them.
        steps: [R] uint32, step of the run of each row.
        rows: [R] uint32, indices into `keys`, or None.

    Returns:
        Action [R, ...], extras, next agent_state.
    """

    def __call__(
        self,
        params: Params,
        observation: np.ndarray,
        agent_state: AgentState,
        is_first: np.ndarray,
        keys: Array,
        steps: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> tuple[Array, dict[str, Array], AgentState]: ...


def make_act(agent: AnyAgent, mode: Mode = Mode.SAMPLE, platform: str = "cpu") -> ActOnRows:
    """Returns the agent's `act`, jitted. It compiles once for each number of rows and each device.

    Args:
        agent: agent whose `act` is called.
        mode: how actions are chosen.
        platform: platform of the device that acts; calls for an accelerator pack their arrays (`packed_act`).
    """

    def act_on_rows(
        params: Params,
        observation: Array,
        agent_state: AgentState,
        is_first: Array,
        keys: Array,
        steps: Array,
        rows: Array | None = None,
    ) -> tuple[Array, dict[str, Array], AgentState]:
        selected = keys if rows is None else keys[rows]
        return agent.act(
            params, observation, agent_state, is_first, jax.vmap(jax.random.fold_in)(selected, steps), mode
        )

    # CPU devices share the host's memory: packing would only add copies.
    return jax.jit(act_on_rows) if platform == "cpu" else PackedAct(act_on_rows)


def act_in_slot(
    act: ActOnRows,
    params: Params,
    rows: ActRows,
    agent_state: AgentState,
    keys: Array,
    steps: np.ndarray,
    version: int,
    key_rows: np.ndarray | None = None,
) -> AgentState:
    """Acts for rows of a slot at one step, and writes the results into the slot.

    Args:
        act: result of `make_act`.
        params: parameters that act.
        rows: rows of the slot at that step.
        agent_state: recurrent state before the step.
        keys: [R] typed keys of the rows, or [N] where `key_rows` selects from them; not consumed.
        steps: [R] uint32, steps of the run.
        version: version of the parameters.
        key_rows: [R] uint32, indices into `keys`; None for all of them.

    Returns:
        The recurrent state after the step.
    """
    action, extras, after = act(params, rows.observation, agent_state, rows.is_first, keys, steps, key_rows)
    # Fetching the results also proves that the observations, which may be aliased, have been read.
    action, extras = fetch((action, extras))
    rows.write(action, extras, version)
    if rows.state_before is not None:
        write(rows.state_before, fetch(agent_state))
    if rows.state_after is not None:
        write(rows.state_after, fetch(after))
    return after


def fetch(tree: Any) -> Any:
    """Returns arrays of a device as read-only numpy arrays.

    `jax.device_get` does the same, but takes 25 us longer for two small arrays on a CPU. That is a third of the call.
    """
    leaves, structure = jax.tree.flatten(tree)
    start_copies_to_host(leaves)
    return structure.unflatten([np.asarray(leaf) for leaf in leaves])


def row_keys(run_key: Array, rows: range) -> Array:
    """Returns [R] typed keys: the run's key folded with each row's id. They are on the device that `run_key` is committed to."""
    return _fold_rows(run_key, np.arange(rows.start, rows.stop, dtype=np.uint32))


def wrap_step(step: int) -> np.uint32:
    """Returns a step of the run in the form that keys are folded with: it wraps around at 2^32, as it does on devices."""
    return np.uint32(step % 2**32)


_fold_rows = jax.jit(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))


def take_rows(agent_state: AgentState, rows: slice) -> AgentState:
    """Returns the state of some rows, from [B, ...] a leaf."""
    return jax.tree.map(lambda leaf: leaf[rows], agent_state)
