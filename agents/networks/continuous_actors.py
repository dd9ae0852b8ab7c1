"""Policies of continuous actions in [-1, 1]^D: a deterministic one, and a Gaussian that is squashed by tanh.

Sources: Lillicrap et al. 2016 (arXiv:1509.02971), section 7; Haarnoja et al. 2018 (arXiv:1812.05905), appendix C. The deviation of
the Gaussian depends on the observation.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import Branch, HeadSize, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs, validate_torso
from envpool_bridge.spec.specs import EnvSpec

LOG_STD_RANGE = (-20.0, 2.0)
"""The authors' code clips log standard deviations to it: below, densities overflow; above, every action is a bound."""

_LOG_2PI = 1.8378770664093453


class DeterministicActor(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        action: Maps (params, observation [B, ...]) to [B, D] float32 in [-1, 1].
    """

    init: Callable[[Array], Params]
    action: Callable[[Params, Observation], Array]


def make_deterministic_actor(config: NetworkConfig, spec: EnvSpec, num_actions: int) -> DeterministicActor:
    """Returns a torso, a head of D outputs that start near 0 (gain 0.01), and tanh.

    Raises:
        UserError: The torso does not fit the observations.
    """
    branch = _make_actor_branch(config, spec, {"head": HeadSize(num_actions, 0.01)})

    def action(params: Params, observation: Observation) -> Array:
        return jnp.tanh(branch.outputs(params, observation)["head"])

    return DeterministicActor(branch.init, action)


class Squashed(NamedTuple):
    """The Gaussian before squashing.

    Attributes:
        mean: [..., D] float32.
        log_std: [..., D] float32, nats.
    """

    mean: Array
    log_std: Array


class SquashedActor(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        parameters: Maps (params, observation [B, ...]) to the Gaussian of each row.
    """

    init: Callable[[Array], Params]
    parameters: Callable[[Params, Observation], Squashed]


def make_squashed_actor(config: NetworkConfig, spec: EnvSpec, num_actions: int) -> SquashedActor:
    """Returns a torso and heads of D means and D log deviations that start near 0 (gain 0.01).

    Raises:
        UserError: The torso does not fit the observations.
    """
    heads = {"mean": HeadSize(num_actions, 0.01), "log_std": HeadSize(num_actions, 0.01)}
    branch = _make_actor_branch(config, spec, heads)

    def parameters(params: Params, observation: Observation) -> Squashed:
        heads = branch.outputs(params, observation)
        return Squashed(heads["mean"], jnp.clip(heads["log_std"], *LOG_STD_RANGE))

    return SquashedActor(branch.init, parameters)


def squash(gaussian: Squashed, noise: Array) -> tuple[Array, Array]:
    """Returns actions [..., D] in [-1, 1] and their log-densities [...], nats, as differentiable functions of the Gaussian.

    log p(a) = sum_i [ log N(u_i; mean_i, std_i) - log(1 - tanh(u_i)^2) ] with a = tanh(u), u = mean + std * noise.

    Args:
        gaussian: [..., D].
        noise: [..., D], standard normal.
    """
    raw = gaussian.mean + jnp.exp(gaussian.log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - gaussian.log_std - 0.5 * _LOG_2PI
    # log(1 - tanh(u)^2) without cancellation; from u itself, which the rounded action at a bound does not determine.
    log_slope = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(log_normal - log_slope, axis=-1)


def _make_actor_branch(config: NetworkConfig, spec: EnvSpec, heads: Mapping[str, HeadSize]) -> Branch:
    inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, inputs)
    return make_branch(config, inputs, heads)
