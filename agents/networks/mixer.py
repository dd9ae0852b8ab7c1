"""Mixers of the values of a team's agents into the value of the team: a sum, or a monotone function that depends on the state."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs, validate_torso
from agents.networks.team_state import make_team_state, memoryless_config
from envpool_bridge.spec.specs import EnvSpec


class Mixer(NamedTuple):
    """Mixer bound to a team's spec; n agents.

    Attributes:
        init: Returns parameters; the key is consumed.
        mix: Maps (params, values [T, N, n] of the agents, observation [T, N n, ...], present [T, N n] bool) to values [T, N] of N
            teams, in reward units. Values of absent agents are 0.
    """

    init: Callable[[Array], Params]
    mix: Callable[[Params, Array, Observation, Array], Array]


def make_sum_mixer() -> Mixer:
    """Returns Q_tot = sum_i Q_i; no parameters. Source: Sunehag et al. 2018 (arXiv:1706.05296), eq. 1."""

    def mix(params: Params, values: Array, observation: Observation, present: Array) -> Array:
        del params, observation, present
        return jnp.sum(values, axis=-1)

    return Mixer(lambda key: {}, mix)


def make_monotone_mixer(config: NetworkConfig, spec: EnvSpec, size: int) -> Mixer:
    """Returns Q_tot = |w_2(s)| . elu(|W_1(s)| q + b_1(s)) + b_2(s), which never decreases in any Q_i.

    One network of the state computes the four, with the torso of `config` and a linear head each.

    Args:
        config: Configuration of that network, which is feed-forward.
        spec: Spec of the rows; n agents.
        size: E, width of the mixing layer.

    Raises:
        UserError: If the torso does not fit the state.

    Source: Rashid et al. 2018 (arXiv:1803.11485), section 4.
    """
    count = spec.rows_per_env
    state = make_team_state(spec, config.torso, always_observations=False)
    config = memoryless_config(config, state.spec)
    inputs = make_inputs(state.spec, config.torso)
    validate_torso(state.spec, inputs)
    sizes = {"first": count * size, "first_bias": size, "second": size, "second_bias": 1}
    heads = {name: HeadSize(outputs, 1.0) for name, outputs in sizes.items()}
    hyper = make_branch(config, inputs, heads)

    def mix(params: Params, values: Array, observation: Observation, present: Array) -> Array:
        weights, _ = hyper.unroll(params, state.view(observation, present), (), present)
        return monotone(values, **weights)

    return Mixer(hyper.init, mix)


def monotone(values: Array, first: Array, first_bias: Array, second: Array, second_bias: Array) -> Array:
    """Returns the output of two layers with non-negative weights.

    Args:
        values: [..., n].
        first: [..., n E].
        first_bias: [..., E].
        second: [..., E].
        second_bias: [..., 1].

    Returns:
        [...].
    """
    weights = jnp.abs(first).reshape((*values.shape, first_bias.shape[-1]))
    # Products and sums, instead of a small matrix product for each step and team.
    hidden = jax.nn.elu(jnp.sum(values[..., None] * weights, axis=-2) + first_bias)
    return jnp.sum(hidden * jnp.abs(second), axis=-1) + second_bias[..., 0]
