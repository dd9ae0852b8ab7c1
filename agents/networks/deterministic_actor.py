"""A deterministic policy: one action in [-1, 1]^D for an observation.

Source: Lillicrap et al. 2016 (arXiv:1509.02971), section 7.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs, validate_torso
from envpool_bridge.spec.specs import EnvSpec


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
    inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, inputs)
    branch = make_branch(config, inputs, {"head": HeadSize(num_actions, 0.01)})
    outputs = branch.outputs
    if outputs is None:
        raise TypeError("a deterministic actor sees single steps: expected network.core 'none'")

    def action(params: Params, observation: Observation) -> Array:
        return jnp.tanh(outputs(params, observation)["head"])

    return DeterministicActor(branch.init, action)
