"""Recurrent cores: what a network remembers from step to step. A row forgets where an episode begins."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, InitialAgentStateFn, Params
from agents.networks.config import NetworkConfig
from agents.networks.cores.gtrxl import GTrXL
from agents.networks.cores.gtrxl_memory import empty_memory
from envpool_bridge.errors import UserError


class CoreApplyFn(Protocol):
    """Outputs of T steps of features.

    Args: params; features [T, B, D] float32; state [B, ...] each; is_first [T, B] bool: the row forgets before that step.
    Returns: outputs [T, B, num_outputs] float32, and the state after the last step.
    """

    def __call__(
        self, params: Params, features: Array, state: AgentState, is_first: Array
    ) -> tuple[Array, AgentState]: ...


class Core(NamedTuple):
    """A core bound to its sizes.

    Attributes:
        init: (key, number of features) to parameters; the key is consumed.
        apply: T steps; T calls of one step each give the same.
        initial_state: of so many rows, [B, ...] each; all zeros, which is what `is_first` takes a row back to.
        num_outputs: size of the outputs.
    """

    init: Callable[[Array, int], Params]
    apply: CoreApplyFn
    initial_state: InitialAgentStateFn
    num_outputs: int


def make_core(config: NetworkConfig) -> Core:
    """Returns the core that the configuration names.

    Raises:
        UserError: it names none.
    """
    if config.core not in _CORES:
        raise UserError(f"a recurrent network needs a core: expected one of {', '.join(_CORES)}, got {config.core!r}")
    return _CORES[config.core](config)


def forget(is_first: Array, state: AgentState) -> AgentState:
    """`state` [B, ...] with zeros in the rows where `is_first` [B]."""

    def cleared(leaf: Array) -> Array:
        return jnp.where(is_first.reshape((-1,) + (1,) * (leaf.ndim - 1)), jnp.zeros_like(leaf), leaf)

    return jax.tree.map(cleared, state)


class _Unrolled(nn.Module):
    """A recurrent cell over T steps."""

    cell: Any

    @nn.compact
    def __call__(self, features: Array, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        def step(cell: Any, carry: AgentState, inputs: tuple[Array, Array]) -> tuple[AgentState, Array]:
            x, first = inputs
            return cell(forget(first, carry), x)

        scan = nn.scan(step, variable_broadcast="params", split_rngs={"params": False})
        state, outputs = scan(self.cell, state, (features, is_first))
        return outputs, state


def _of_cell(cell: Any, size: int, num_states: int) -> Core:
    def initial_state(num_rows: int) -> AgentState:
        zeros = tuple(jnp.zeros((num_rows, size), jnp.float32) for _ in range(num_states))
        return zeros[0] if num_states == 1 else zeros

    return _of_module(_Unrolled(cell), initial_state, size)


def _of_module(module: nn.Module, initial_state: InitialAgentStateFn, size: int) -> Core:
    def init(key: Array, num_features: int) -> Params:
        return module.init(key, jnp.zeros((1, 1, num_features)), initial_state(1), jnp.ones((1, 1), bool))

    def apply(params: Params, features: Array, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        return module.apply(params, features, state, is_first)  # pyright: ignore[reportReturnType]

    return Core(init, apply, initial_state, size)


def _lstm(config: NetworkConfig) -> Core:
    """Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. State: (cell [B, H], hidden [B, H])."""
    return _of_cell(nn.OptimizedLSTMCell(config.core_size), config.core_size, 2)


def _gru(config: NetworkConfig) -> Core:
    """Cho et al. 2014, but the reset gate acts after the matrix product: r * (W h + b), not W (r * h) + b. State: hidden [B, H]."""
    return _of_cell(nn.GRUCell(config.core_size), config.core_size, 1)


def _gtrxl(config: NetworkConfig) -> Core:
    """Parisotto et al. 2019. State: {"memory": [B, core_layers, core_memory, H], "filled": [B]}."""

    def initial_state(num_rows: int) -> AgentState:
        return empty_memory(num_rows, config.core_layers, config.core_memory, config.core_size)

    module = GTrXL(config.core_size, config.core_layers, config.core_heads)
    return _of_module(module, initial_state, config.core_size)


_CORES: dict[str, Callable[[NetworkConfig], Core]] = {"lstm": _lstm, "gru": _gru, "gtrxl": _gtrxl}
