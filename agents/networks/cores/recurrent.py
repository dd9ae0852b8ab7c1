"""Recurrent cores. The first step of an episode clears the state of its row."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, InitialAgentStateFn, Params
from agents.networks.config import NetworkConfig
from agents.networks.cores.gtrxl import GTrXL, init_memory
from envpool_bridge.errors import UserError


class Core(NamedTuple):
    """A core bound to its sizes.

    Attributes:
        init: Maps (key, number of features) to parameters; the key is consumed.
        apply: Maps (params, features [T, B, D] float32, state [B, ...] each, is_first [T, B] bool) to outputs [T, B, num_outputs]
            float32 and the next state. The result is that of T calls of one step. `is_first` clears the row's state before.
        initial_state: Returns the initial state of a number of rows, [B, ...] each: zeros, as after a reset by `is_first`.
        num_outputs: Size of the outputs.
    """

    init: Callable[[Array, int], Params]
    apply: Callable[[Params, Array, AgentState, Array], tuple[Array, AgentState]]
    initial_state: InitialAgentStateFn
    num_outputs: int


def make_core(config: NetworkConfig) -> Core:
    """Returns the core that the configuration names.

    Raises:
        UserError: If it names none.
    """
    if config.core not in _CORES:
        raise UserError(f"a recurrent network needs a core: expected one of {', '.join(_CORES)}, got {config.core!r}")
    return _CORES[config.core](config)


def reset_rows(is_first: Array, state: AgentState) -> AgentState:
    """Returns `state` [B, ...] with zeros in the rows where `is_first` [B]."""

    def reset(leaf: Array) -> Array:
        return jnp.where(is_first.reshape((-1,) + (1,) * (leaf.ndim - 1)), jnp.zeros_like(leaf), leaf)

    return jax.tree.map(reset, state)


class _Unrolled(nn.Module):
    """Scan of a recurrent cell over T steps."""

    cell: Any

    @nn.compact
    def __call__(self, features: Array, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        def step(cell: Any, carry: AgentState, inputs: tuple[Array, Array]) -> tuple[AgentState, Array]:
            x, first = inputs
            return cell(reset_rows(first, carry), x)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        state, outputs = scan(self.cell, state, (features, is_first))
        return outputs, state


class _Layers(nn.Module):
    """Cells on top of each other as one cell, whose state is the tuple of theirs."""

    cells: tuple[Any, ...]

    @nn.compact
    def __call__(self, states: AgentState, x: Array) -> tuple[AgentState, Array]:
        after: list[AgentState] = []
        for cell, state in zip(self.cells, states, strict=True):
            state, x = cell(state, x)
            after.append(state)
        return tuple(after), x


def _cell_core(config: NetworkConfig, make_cell: Callable[[], Any], num_states: int) -> Core:
    size, num_layers = config.core_size, config.num_core_layers

    def layer_state(num_rows: int) -> AgentState:
        zeros = tuple(jnp.zeros((num_rows, size), jnp.float32) for _ in range(num_states))
        return zeros[0] if num_states == 1 else zeros

    if num_layers == 1:
        return _module_core(_Unrolled(make_cell()), layer_state, size)
    layers = _Layers(tuple(make_cell() for _ in range(num_layers)))
    return _module_core(_Unrolled(layers), lambda num_rows: (layer_state(num_rows),) * num_layers, size)


def _module_core(module: nn.Module, initial_state: InitialAgentStateFn, size: int) -> Core:
    def init(key: Array, num_features: int) -> Params:
        return module.init(key, jnp.zeros((1, 1, num_features)), initial_state(1), jnp.ones((1, 1), bool))

    def apply(params: Params, features: Array, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        return module.apply(params, features, state, is_first)  # pyright: ignore[reportReturnType]

    return Core(init, apply, initial_state, size)


def _lstm(config: NetworkConfig) -> Core:
    """Returns the LSTM of Hochreiter and Schmidhuber 1997 with the forget gate of Gers et al. 2000.

    State: (cell [B, H], hidden [B, H]); of several layers, a tuple of them.
    """
    return _cell_core(config, lambda: nn.OptimizedLSTMCell(config.core_size, dtype=config.dtype), 2)


def _gru(config: NetworkConfig) -> Core:
    """Returns the GRU of Cho et al. 2014, with the reset gate after the matrix product: r * (W h + b), not W (r * h) + b.

    State: hidden [B, H]; of several layers, a tuple of them.
    """
    return _cell_core(config, lambda: nn.GRUCell(config.core_size, dtype=config.dtype), 1)


def _gtrxl(config: NetworkConfig) -> Core:
    """Returns the GTrXL of Parisotto et al. 2019. State: {"memory": [B, layers, core_memory, H], "filled": [B]}."""

    def initial_state(num_rows: int) -> AgentState:
        return init_memory(num_rows, config.num_core_layers, config.core_memory, config.core_size)

    module = GTrXL(config.core_size, config.num_core_layers, config.core_heads, config.dtype)
    return _module_core(module, initial_state, config.core_size)


_CORES: dict[str, Callable[[NetworkConfig], Core]] = {"lstm": _lstm, "gru": _gru, "gtrxl": _gtrxl}
