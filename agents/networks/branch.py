"""A path from observations to outputs: torso, core of a recurrent network, and linear heads."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.networks.config import NetworkConfig
from agents.networks.cores.recurrent import Core, make_core
from agents.networks.observation_inputs import ObservationInputs
from agents.networks.torsos.torso import Images, apply_torso


class HeadSize(NamedTuple):
    """Number of outputs of a linear layer, and the gain of its orthogonal weights."""

    num_outputs: int
    gain: float


Heads = Mapping[str, HeadSize | None]
"""Heads by name; None stands for the features themselves."""
Outputs = dict[str, Array]


class Branch(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        outputs: Maps (params, observation [..., *leaf]) to each head's [..., num_outputs], or the features. A recurrent branch
            raises TypeError.
        unroll: Maps (params, observation [T, B, ...], state [B, ...], is_first [T, B]) to outputs and the next state.
        initial_state: Returns the initial state of a number of rows; () for a feed-forward branch.
    """

    init: Callable[[Array], Params]
    outputs: Callable[[Params, Observation], Outputs]
    unroll: Callable[[Params, Observation, AgentState, Array], tuple[Outputs, AgentState]]
    initial_state: InitialAgentStateFn


class _Features(nn.Module):
    config: NetworkConfig
    images: Images

    @nn.compact
    def __call__(self, inputs: Any) -> Array:
        return apply_torso(self.config, self.images, inputs)


class _Heads(nn.Module):
    heads: Heads

    @nn.compact
    def __call__(self, features: Array) -> Outputs:
        return _apply_heads(self.heads, features)


class _Linear(nn.Module):
    num_outputs: int
    gain: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.Dense(self.num_outputs, kernel_init=nn.initializers.orthogonal(self.gain))(x)


class _Memoryless(nn.Module):
    config: NetworkConfig
    images: Images
    heads: Heads

    @nn.compact
    def __call__(self, inputs: Any) -> Outputs:
        return _apply_heads(self.heads, apply_torso(self.config, self.images, inputs))


def _apply_heads(heads: Heads, features: Array) -> Outputs:
    return {name: features if head is None else _Linear(*head, name=name)(features) for name, head in heads.items()}


def make_branch(config: NetworkConfig, inputs: ObservationInputs, heads: Heads) -> Branch:
    """Returns a branch of torso, core and named heads."""
    if config.core == "none":
        return _memoryless(config, inputs, heads)
    return _recurrent(config, inputs, heads, make_core(config))


def _memoryless(config: NetworkConfig, inputs: ObservationInputs, heads: Heads) -> Branch:
    module = _Memoryless(config, inputs.images, heads)

    def outputs(params: Params, observation: Observation) -> Outputs:
        return _apply(module, inputs, params, observation)

    def unroll(params: Params, observation: Observation, state: AgentState, _: Array) -> tuple[Outputs, AgentState]:
        return outputs(params, observation), state

    return Branch(lambda key: module.init(key, inputs.zeros()), outputs, unroll, lambda num_rows: ())


def _recurrent(config: NetworkConfig, inputs: ObservationInputs, heads: Heads, core: Core) -> Branch:
    torso, linear = _Features(config, inputs.images), _Heads(heads)

    def init(key: Array) -> Params:
        torso_key, core_key, head_key = jax.random.split(key, 3)
        params = torso.init(torso_key, inputs.zeros())
        num_features = jax.eval_shape(torso.apply, params, inputs.zeros()).shape[-1]  # pyright: ignore
        zeros = jnp.zeros((1, core.num_outputs))
        return {"torso": params, "core": core.init(core_key, num_features), "head": linear.init(head_key, zeros)}

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Outputs, AgentState]:
        features = _apply(torso, inputs, params["torso"], observation)
        outputs, state = core.apply(params["core"], features, state, is_first)
        return linear.apply(params["head"], outputs), state  # pyright: ignore[reportReturnType]

    return Branch(init, _raise_recurrent, unroll, core.initial_state)


def _raise_recurrent(params: Params, observation: Observation) -> Outputs:
    raise TypeError("a recurrent network has no outputs for an observation alone: use `step` or `unroll`")


def _apply(module: nn.Module, inputs: ObservationInputs, params: Params, observation: Observation) -> Any:
    """Applies a module to observations [B, ...] or [T, B, ...]."""
    return inputs.restore(observation, module.apply(params, inputs.encode(observation)))
