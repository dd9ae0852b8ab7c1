"""MuZero's networks: representation, dynamics and prediction, over a latent vector.

Source: Schrittwieser et al. 2020 (arXiv:1911.08265), section 3 and appendix F. Images pass through a torso to a vector, too; the
paper keeps them as planes. Value prefix: Ye et al. 2021 (arXiv:2111.00210, EfficientZero), section 4.2.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.observation_inputs import make_inputs, validate_torso
from agents.networks.torsos.mlp import MLP
from agents.ops.two_hot import two_hot_mean
from agents.ops.unrolled_targets import scale_gradient
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_SMALL_GAIN = 0.01  # initial policies are near uniform, initial values and rewards near 0


class PrefixState(NamedTuple):
    """State of a model whose reward head predicts a value prefix: the sum of rewards since the last start of its memory.

    Attributes:
        latent: [..., D] float32.
        memory: Carry of the reward head's LSTM, two arrays [..., H].
        prefix: [...] float32, expected sum of the rewards so far.
        num_steps: [...] float32, steps of the model since the memory's start.
    """

    latent: Array
    memory: tuple[Array, Array]
    prefix: Array
    num_steps: Array


ModelState = Array | PrefixState
"""Latent states [..., D], with the memory of a value prefix if the model has one."""


class Prediction(NamedTuple):
    """Outputs for a latent state.

    Attributes:
        policy: [..., P] float32, parameters of the policy.
        value: [..., K] float32, logits of the value's atoms.
    """

    policy: Array
    value: Array


class MuZeroNetwork(NamedTuple):
    """Bound to an environment's spec. D is the size of the latent state, F that of an action's features.

    Attributes:
        init: Returns parameters; the key is consumed.
        represent: Maps (params, observation [..., *leaf]) to states, whose latents [..., D] are in [0, 1].
        advance: Maps (params, state, action features [..., F]) to the next state and logits [..., K] of the reward, or of the
            value prefix.
        predict: Maps (params, state) to policy and value.
    """

    init: Callable[[Array], Params]
    represent: Callable[[Params, Observation], ModelState]
    advance: Callable[[Params, ModelState, Array], tuple[ModelState, Array]]
    predict: Callable[[Params, ModelState], Prediction]


class _Dynamics(nn.Module):
    config: NetworkConfig
    latent_size: int
    num_atoms: int

    @nn.compact
    def __call__(self, latent: Array, action: Array, memory: Any = None) -> tuple[Array, Any, Array]:
        hidden = MLP(self.config.hidden_sizes, self.config.layers)(jnp.concatenate([latent, action], axis=-1))
        change = nn.Dense(self.latent_size, kernel_init=nn.initializers.orthogonal(1.0), name="latent")(hidden)
        if memory is not None:
            memory, hidden = nn.OptimizedLSTMCell(hidden.shape[-1], name="prefix")(memory, hidden)
        return scale_latent(latent + change), memory, small_head(self.num_atoms, "reward")(hidden)


class _Prediction(nn.Module):
    config: NetworkConfig
    num_parameters: int
    num_atoms: int

    @nn.compact
    def __call__(self, latent: Array) -> Prediction:
        hidden = MLP(self.config.hidden_sizes, self.config.layers)(latent)
        return Prediction(
            small_head(self.num_parameters, "policy")(hidden), small_head(self.num_atoms, "value")(hidden)
        )


def small_head(num_outputs: int, name: str) -> nn.Dense:
    """Returns a linear layer of small initial weights."""
    return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(_SMALL_GAIN), name=name)


def make_muzero_network(
    config: NetworkConfig,
    spec: EnvSpec,
    *,
    latent_size: int,
    num_parameters: int,
    num_features: int,
    num_atoms: int,
    prefix_steps: int = 0,
) -> MuZeroNetwork:
    """Returns the networks: the torso of `config` and a linear layer to the latent, and dense layers of its `hidden_sizes`.

    Args:
        config: Configuration of all three networks.
        spec: Spec of the environment.
        latent_size: D.
        num_parameters: P, of the policy.
        num_features: F, of an action.
        num_atoms: K, of values and rewards.
        prefix_steps: Steps after which the memory of a value prefix restarts; 0 predicts each reward by itself.

    Raises:
        UserError: If the network is recurrent, has sizes of a critic, or does not fit the observations.
    """
    validate_read(config, "MuZero")
    if config.core != "none":
        raise UserError(
            f"MuZero unrolls a model of its own, without a recurrent core: expected network.core 'none', got {config.core!r}"
        )
    inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, inputs)
    representation = make_branch(config, inputs, {"latent": HeadSize(latent_size, 1.0)})
    dynamics = _Dynamics(config, latent_size, num_atoms)
    prediction = _Prediction(config, num_parameters, num_atoms)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 3)
        latent = jnp.zeros((1, latent_size))
        memory = _start(latent, config.hidden_sizes[-1]).memory if prefix_steps else None
        return {
            "representation": representation.init(keys[0]),
            "dynamics": dynamics.init(keys[1], latent, jnp.zeros((1, num_features)), memory),
            "prediction": prediction.init(keys[2], latent),
        }

    def represent(params: Params, observation: Observation) -> ModelState:
        latent = scale_latent(representation.outputs(params["representation"], observation)["latent"])
        return _start(latent, config.hidden_sizes[-1]) if prefix_steps else latent

    def advance(params: Params, state: ModelState, action: Array) -> tuple[ModelState, Array]:
        return _advance(partial(dynamics.apply, params["dynamics"]), state, action, prefix_steps)

    def predict(params: Params, state: ModelState) -> Prediction:
        return prediction.apply(params["prediction"], latent_of(state))  # pyright: ignore[reportReturnType]

    return MuZeroNetwork(init, represent, advance, predict)


def _start(latent: Array, memory_size: int) -> PrefixState:
    """Returns states with an empty memory of the value prefix."""
    zeros = jnp.zeros((*latent.shape[:-1], memory_size))
    return PrefixState(latent, (zeros, zeros), zeros[..., 0], zeros[..., 0])


def _advance(
    dynamics: Callable[..., Any], state: ModelState, action: Array, prefix_steps: int
) -> tuple[ModelState, Array]:
    """Returns the next state and logits; the memory restarts after `prefix_steps` steps."""
    if not isinstance(state, PrefixState):
        latent, _, logits = dynamics(state, action)
        return latent, logits
    latent, memory, logits = dynamics(state.latent, action, state.memory)
    following = PrefixState(latent, memory, two_hot_mean(logits), state.num_steps + 1.0)
    ends = following.num_steps >= prefix_steps

    def restart(old: Array, new: Array) -> Array:
        return jnp.where(ends.reshape(ends.shape + (1,) * (old.ndim - ends.ndim)), new, old)

    return jax.tree.map(restart, following, _start(latent, memory[0].shape[-1])), logits


def latent_of(state: ModelState) -> Array:
    """Returns the latent vectors [..., D] of states."""
    return state.latent if isinstance(state, PrefixState) else state


def expected_reward(state: ModelState, logits: Array) -> Array:
    """Returns the reward [...] of a step from a state, from what `advance` predicts."""
    mean = two_hot_mean(logits)
    return mean - state.prefix if isinstance(state, PrefixState) else mean


def halve_gradient(state: ModelState) -> ModelState:
    """Returns the state, with the gradient of its latent vector multiplied by 0.5 (appendix G)."""
    if isinstance(state, PrefixState):
        return state._replace(latent=scale_gradient(state.latent, 0.5))
    return scale_gradient(state, 0.5)


def scale_latent(latent: Array) -> Array:
    """Returns latent vectors [..., D], each scaled to [0, 1] by its smallest and largest element (appendix F)."""
    low, high = latent.min(-1, keepdims=True), latent.max(-1, keepdims=True)
    return (latent - low) / (high - low + 1e-5)
