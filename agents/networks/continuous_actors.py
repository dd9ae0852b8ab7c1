"""Policies of continuous actions in [-1, 1]^D: a deterministic one, and a Gaussian that is squashed by tanh.

Sources: Lillicrap et al. 2016 (arXiv:1509.02971), section 7; Haarnoja et al. 2018 (arXiv:1812.05905), appendix C. The deviation of
the Gaussian depends on the observation.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.networks.branch import Branch, Heads, HeadSize, Outputs, make_branch
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.observation_inputs import actor_config, make_inputs, validate_torso
from agents.networks.state_dependent_noise import (
    feature_log_std,
    feature_noise,
    initial_log_std,
    initial_noise_state,
    next_noise_state,
)
from agents.ops.action_scaling import standard_normal
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
        UserError: If the torso does not fit the observations, or the configuration has settings of another policy.
    """
    validate_read(config, "a policy with noise of its own", "critic_hidden_sizes")
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
        initial_state: Returns the initial state of the noise of a number of rows; () without gSDE.
        explore: Maps (params, observation [B, ...], state [B, ...] each, is_first [B] bool, keys [B]) to the Gaussian, standard
            normal noise [B, D] and the next state; keys are consumed.
    """

    init: Callable[[Array], Params]
    parameters: Callable[[Params, Observation], Squashed]
    initial_state: InitialAgentStateFn
    explore: Callable[[Params, Observation, AgentState, Array, Array], tuple[Squashed, Array, AgentState]]


def make_squashed_actor(config: NetworkConfig, spec: EnvSpec, num_actions: int) -> SquashedActor:
    """Returns a torso and heads of D means and D log deviations that start near 0 (gain 0.01).

    With `config.sde_period` the deviations and the noise are those of gSDE.

    Raises:
        UserError: If the torso does not fit the observations, or the configuration has settings of another policy.
    """
    sde = () if config.sde_period is None else ("sde_period", "initial_log_std")
    validate_read(config, "a policy whose deviation is an output", "critic_hidden_sizes", *sde)
    if config.sde_period is not None:
        return _make_sde_actor(config, config.sde_period, spec, num_actions)
    heads = {"mean": HeadSize(num_actions, 0.01), "log_std": HeadSize(num_actions, 0.01)}
    branch = _make_actor_branch(config, spec, heads)

    def parameters(params: Params, observation: Observation) -> Squashed:
        heads = branch.outputs(params, observation)
        return Squashed(heads["mean"], jnp.clip(heads["log_std"], *LOG_STD_RANGE))

    def explore(
        params: Params, observation: Observation, state: AgentState, is_first: Array, keys: Array
    ) -> tuple[Squashed, Array, AgentState]:
        del is_first
        return parameters(params, observation), standard_normal(keys, num_actions), state

    return SquashedActor(branch.init, parameters, lambda num_rows: (), explore)


def _make_sde_actor(config: NetworkConfig, period: int, spec: EnvSpec, num_actions: int) -> SquashedActor:
    branch = _make_actor_branch(config, spec, {"mean": HeadSize(num_actions, 0.01), "features": None})

    def init(key: Array) -> Params:
        return {"branch": branch.init(key), "log_std": initial_log_std(config, num_actions)}

    def gaussian(params: Params, outputs: Outputs) -> Squashed:
        log_std = feature_log_std(outputs["features"], params["log_std"])
        return Squashed(outputs["mean"], jnp.clip(log_std, *LOG_STD_RANGE))

    def parameters(params: Params, observation: Observation) -> Squashed:
        return gaussian(params, branch.outputs(params["branch"], observation))

    def explore(
        params: Params, observation: Observation, state: AgentState, is_first: Array, keys: Array
    ) -> tuple[Squashed, Array, AgentState]:
        state = next_noise_state(period, state, is_first, keys)
        outputs = branch.outputs(params["branch"], observation)
        return gaussian(params, outputs), feature_noise(outputs["features"], params["log_std"], state["seed"]), state

    return SquashedActor(init, parameters, initial_noise_state, explore)


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


def _make_actor_branch(config: NetworkConfig, spec: EnvSpec, heads: Heads) -> Branch:
    inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, inputs)
    return make_branch(actor_config(config, inputs), inputs, heads)
