"""A conditional variational autoencoder of actions, and small learned changes of actions.

Sources: Kingma and Welling 2014 (arXiv:1312.6114); Fujimoto et al. 2019 (arXiv:1812.02900), section 4 and appendix.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.observation_inputs import make_inputs, validate_torso
from agents.networks.vector_branch import make_vector_branch
from envpool_bridge.spec.specs import EnvSpec

LOG_STD_RANGE = (-4.0, 15.0)
"""The authors' code clips log standard deviations of the encoder to it."""
LATENT_RANGE = (-0.5, 0.5)
"""The authors' code clips latents that are drawn from the prior to it: the decoder then stays near recorded actions."""


class ActionGenerator(NamedTuple):
    """Bound to an environment's spec. Latents have 2 D elements.

    Attributes:
        init: Returns parameters of encoder and decoder; the key is consumed.
        encode: Maps (params, observation [B, ...], action [B, D]) to mean and log standard deviation of the latents, [B, 2 D] each.
        decode: Maps (params, observation [B, ...], latent [B, 2 D]) to actions [B, D] in [-1, 1]. [K, B] may replace [B].
        latent_size: 2 D.
    """

    init: Callable[[Array], Params]
    encode: Callable[[Params, Observation, Array], tuple[Array, Array]]
    decode: Callable[[Params, Observation, Array], Array]
    latent_size: int


def make_action_generator(config: NetworkConfig, spec: EnvSpec, num_actions: int) -> ActionGenerator:
    """Returns the autoencoder; raises UserError where the torso does not fit the observations."""
    inputs, latent_size = make_inputs(spec, config.torso), 2 * num_actions
    validate_torso(spec, inputs)
    moments = {"mean": HeadSize(latent_size, 0.01), "log_std": HeadSize(latent_size, 0.01)}
    encoder = make_vector_branch(config, inputs, "action", num_actions, moments)
    decoder = make_vector_branch(config, inputs, "latent", latent_size, {"head": HeadSize(num_actions, 0.01)})

    def init(key: Array) -> Params:
        encoder_key, decoder_key = jax.random.split(key)
        return {"encoder": encoder.init(encoder_key), "decoder": decoder.init(decoder_key)}

    def encode(params: Params, observation: Observation, action: Array) -> tuple[Array, Array]:
        heads = encoder.outputs(params["encoder"], observation, action)
        return heads["mean"], jnp.clip(heads["log_std"], *LOG_STD_RANGE)

    def decode(params: Params, observation: Observation, latent: Array) -> Array:
        return jnp.tanh(decoder.outputs(params["decoder"], observation, latent)["head"])

    return ActionGenerator(init, encode, decode, latent_size)


class Perturbation(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        perturbed: Maps (params, observation [B, ...], action [B, D]) to changed actions [B, D] in [-1, 1]. [K, B] may replace [B].
    """

    init: Callable[[Array], Params]
    perturbed: Callable[[Params, Observation, Array], Array]


def make_perturbation(config: NetworkConfig, spec: EnvSpec, num_actions: int, limit: float) -> Perturbation:
    """Returns a network that changes elements of an action by at most `limit`; raises UserError where the torso does not fit."""
    validate_read(config, "BCQ", "critic_hidden_sizes")
    inputs = make_inputs(spec, config.torso)
    validate_torso(spec, inputs)
    branch = make_vector_branch(config, inputs, "action", num_actions, {"head": HeadSize(num_actions, 0.01)})

    def perturbed(params: Params, observation: Observation, action: Array) -> Array:
        change = limit * jnp.tanh(branch.outputs(params, observation, action)["head"])
        return jnp.clip(action + change, -1.0, 1.0)

    return Perturbation(branch.init, perturbed)
