"""A Gaussian policy of continuous actions whose mean lies in [-1, 1]^D and whose deviation is independent of the observation.

Source: Kostrikov et al. 2022 (arXiv:2110.06169), appendix C.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.config import NetworkConfig
from agents.networks.continuous_actors import make_deterministic_actor
from agents.networks.distributions.normal import LOG_2PI
from agents.ops.action_scaling import standard_normal
from envpool_bridge.spec.specs import EnvSpec

LOG_STD_RANGE = (-5.0, 2.0)


class GaussianActor(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        mean: Maps (params, observation [B, ...]) to [B, D] float32 in [-1, 1].
        sample: Maps (params, observation [B, ...], keys [B]) to [B, D] float32 in [-1, 1]; keys are consumed.
        log_prob: Maps (params, observation [B, ...], action [B, D]) to log-densities [B], nats, of the Gaussian before its samples
            are clipped.
    """

    init: Callable[[Array], Params]
    mean: Callable[[Params, Observation], Array]
    sample: Callable[[Params, Observation, Array], Array]
    log_prob: Callable[[Params, Observation, Array], Array]


def make_gaussian_actor(config: NetworkConfig, spec: EnvSpec, num_actions: int) -> GaussianActor:
    """Returns the actor, whose deviations start at 1; raises UserError where the torso does not fit the observations."""
    actor = make_deterministic_actor(config, spec, num_actions)

    def init(key: Array) -> Params:
        return {"mean": actor.init(key), "log_std": jnp.zeros(num_actions)}

    def mean(params: Params, observation: Observation) -> Array:
        return actor.action(params["mean"], observation)

    def log_std(params: Params) -> Array:
        return jnp.clip(params["log_std"], *LOG_STD_RANGE)

    def sample(params: Params, observation: Observation, keys: Array) -> Array:
        noise = standard_normal(keys, num_actions)
        return jnp.clip(mean(params, observation) + jnp.exp(log_std(params)) * noise, -1.0, 1.0)

    def log_prob(params: Params, observation: Observation, action: Array) -> Array:
        scaled = (action - mean(params, observation)) * jnp.exp(-log_std(params))
        return jnp.sum(-0.5 * jnp.square(scaled) - log_std(params) - 0.5 * LOG_2PI, axis=-1)

    return GaussianActor(init, mean, sample, log_prob)
