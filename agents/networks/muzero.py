"""MuZero's networks: representation, dynamics and prediction, over a latent vector.

Source: Schrittwieser et al. 2020 (arXiv:1911.08265), section 3 and appendix F. Images pass through a torso to a vector, too; the
paper keeps them as planes.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig, validate_critic_sizes
from agents.networks.observation_inputs import make_inputs, validate_torso
from agents.networks.torsos.mlp import MLP
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec

_SMALL_GAIN = 0.01  # initial policies are near uniform, initial values and rewards near 0


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
        represent: Maps (params, observation [..., *leaf]) to latent states [..., D] in [0, 1].
        advance: Maps (params, latent [..., D], action features [..., F]) to the next latent [..., D] and logits of the reward
            [..., K].
        predict: Maps (params, latent [..., D]) to policy and value.
    """

    init: Callable[[Array], Params]
    represent: Callable[[Params, Observation], Array]
    advance: Callable[[Params, Array, Array], tuple[Array, Array]]
    predict: Callable[[Params, Array], Prediction]


class _Dynamics(nn.Module):
    config: NetworkConfig
    latent_size: int
    num_atoms: int

    @nn.compact
    def __call__(self, latent: Array, action: Array) -> tuple[Array, Array]:
        hidden = MLP(self.config.hidden_sizes, self.config.layers)(jnp.concatenate([latent, action], axis=-1))
        change = nn.Dense(self.latent_size, kernel_init=nn.initializers.orthogonal(1.0), name="latent")(hidden)
        return scale_latent(latent + change), _small_head(self.num_atoms, "reward")(hidden)


class _Prediction(nn.Module):
    config: NetworkConfig
    num_parameters: int
    num_atoms: int

    @nn.compact
    def __call__(self, latent: Array) -> Prediction:
        hidden = MLP(self.config.hidden_sizes, self.config.layers)(latent)
        return Prediction(
            _small_head(self.num_parameters, "policy")(hidden), _small_head(self.num_atoms, "value")(hidden)
        )


def _small_head(num_outputs: int, name: str) -> nn.Dense:
    return nn.Dense(num_outputs, kernel_init=nn.initializers.orthogonal(_SMALL_GAIN), name=name)


def make_muzero_network(
    config: NetworkConfig,
    spec: EnvSpec,
    *,
    latent_size: int,
    num_parameters: int,
    num_features: int,
    num_atoms: int,
) -> MuZeroNetwork:
    """Returns the networks: the torso of `config` and a linear layer to the latent, and dense layers of its `hidden_sizes`.

    Args:
        config: Configuration of all three networks.
        spec: Spec of the environment.
        latent_size: D.
        num_parameters: P, of the policy.
        num_features: F, of an action.
        num_atoms: K, of values and rewards.

    Raises:
        UserError: The network is recurrent, has sizes of a critic, or does not fit the observations.
    """
    if config.core != "none":
        raise UserError(
            f"MuZero unrolls a model of its own, without a recurrent core: expected network.core 'none', got {config.core!r}"
        )
    validate_critic_sizes(config, "MuZero has none")
    inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, inputs)
    representation = make_branch(config, inputs, {"latent": HeadSize(latent_size, 1.0)})
    dynamics = _Dynamics(config, latent_size, num_atoms)
    prediction = _Prediction(config, num_parameters, num_atoms)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 3)
        latent = jnp.zeros((1, latent_size))
        return {
            "representation": representation.init(keys[0]),
            "dynamics": dynamics.init(keys[1], latent, jnp.zeros((1, num_features))),
            "prediction": prediction.init(keys[2], latent),
        }

    def represent(params: Params, observation: Observation) -> Array:
        return scale_latent(representation.outputs(params["representation"], observation)["latent"])

    def advance(params: Params, latent: Array, action: Array) -> tuple[Array, Array]:
        return dynamics.apply(params["dynamics"], latent, action)  # pyright: ignore[reportReturnType]

    def predict(params: Params, latent: Array) -> Prediction:
        return prediction.apply(params["prediction"], latent)  # pyright: ignore[reportReturnType]

    return MuZeroNetwork(init, represent, advance, predict)


def scale_latent(latent: Array) -> Array:
    """Returns latent vectors [..., D], each scaled to [0, 1] by its smallest and largest element (appendix F)."""
    low, high = latent.min(-1, keepdims=True), latent.max(-1, keepdims=True)
    return (latent - low) / (high - low + 1e-5)
