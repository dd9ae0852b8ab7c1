"""Jitted call of an agent's `act`. Each row's key depends only on run, row and step."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from agents.api import AgentState, AnyAgent, Array, Mode, Params
from envpool_bridge.shm.slots import ActRows, blank_window
from envpool_bridge.spec.specs import EnvSpec, LeafSpec
from envpool_bridge.spec.tree import Tree, map_leaves, take, write
from jaxsrl.collect.inference.packed_act import PackedAct
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.machine.devices import start_copies_to_host


@dataclasses.dataclass
class InferenceStats:
    """Totals since the start, of a server (written by its thread only) or of all actors of a pool.

    Attributes:
        calls: calls of the jitted function.
        rows: rows acted for.
        busy_seconds: time from picking ready lanes to posting their actions; of actors, time spent acting, summed over them.
    """

    calls: int = 0
    rows: int = 0
    busy_seconds: float = 0.0


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

    if platform != "cpu":
        return PackedAct(act_on_rows)
    # CPU devices share the host's memory: packing would only add copies.
    return jax.jit(act_on_rows, compiler_options=compiler_options(jax.default_backend()))


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


class LaneInputs(NamedTuple):
    """Inputs of one lane's R rows.

    Attributes:
        observation: Observation, as `ActRows` has it.
        is_first: [R] bools, whether each observation is the first of an episode.
        step: Step of the run.
        first_key: index of the first row's key; those of the other rows follow.
    """

    observation: Tree
    is_first: np.ndarray
    step: int
    first_key: int


def act_for_lanes(
    act: ActOnRows,
    params: Params,
    lanes: Sequence[LaneInputs],
    padded_lanes: int,
    spec: EnvSpec,
    agent_state: AgentState,
    keys: Array,
) -> list[tuple[Tree, dict[str, np.ndarray]]]:
    """Acts for lanes, gathered into one call.

    Args:
        act: result of `make_act`.
        params: parameters that act.
        lanes: Lanes, at least one, of R rows each.
        padded_lanes: number of lanes that the call was compiled for, at least `len(lanes)`.
        spec: spec of a row.
        agent_state: state of an agent without memory, which no call changes.
        keys: [N] typed keys, which `LaneInputs.first_key` indexes; not consumed.

    Returns:
        Action and extras of each lane, [R, ...] a leaf.
    """
    size = lanes[0].is_first.shape[-1]
    total = padded_lanes * size
    observation, is_first = blank_window(spec, total)
    steps, key_rows = np.zeros(total, np.uint32), np.zeros(total, np.uint32)  # row 0 where the call is padded
    places = [slice(number * size, (number + 1) * size) for number in range(len(lanes))]
    for place, lane in zip(places, lanes, strict=True):
        map_leaves(partial(_write_rows, place), spec.observation, observation, lane.observation)
        is_first[..., place] = lane.is_first
        steps[place] = wrap_step(lane.step)
        key_rows[place] = np.arange(lane.first_key, lane.first_key + size)
    action, extras, _ = act(params, observation, agent_state, is_first, keys, steps, key_rows)
    action, extras = fetch((action, extras))
    return [(take(action, place), {name: values[place] for name, values in extras.items()}) for place in places]


def _write_rows(here: slice, leaf: LeafSpec, target: np.ndarray, values: np.ndarray) -> None:
    """Writes rows of [R, ...], or of [F, R, ...] for stacked frames."""
    target[(slice(None), here) if target.ndim > 1 + len(leaf.stored_shape) else here] = values


def compile_act(
    act: ActOnRows, params: Params, spec: EnvSpec, state: AgentState, keys: Array, num_rows: int, selects_keys: bool
) -> None:
    """Compiles calls for a number of rows, so that none compiles while environments or the learner wait.

    Args:
        act: result of `make_act`.
        params: any parameters, on the device that acts.
        spec: spec of a row.
        state: recurrent state of the rows.
        keys: keys as in these calls.
        num_rows: R.
        selects_keys: whether these calls select from the keys by `rows`.
    """
    observation, is_first = blank_window(spec, num_rows)
    zeros = np.zeros(num_rows, np.uint32)
    for _ in range(2):  # the state that a call returns may differ in kind from the one it brought
        call = act(params, observation, state, is_first, keys, zeros, zeros if selects_keys else None)
        _, _, state = jax.block_until_ready(call)


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
