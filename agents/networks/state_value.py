"""A value function of observations."""

from collections.abc import Callable
from typing import NamedTuple

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs, validate_torso
from envpool_bridge.spec.specs import EnvSpec


class StateValue(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        values: Maps (params, observation [B, ...]) to [B] float32, reward units.
    """

    init: Callable[[Array], Params]
    values: Callable[[Params, Observation], Array]


def make_state_value(config: NetworkConfig, spec: EnvSpec) -> StateValue:
    """Returns the value function of all leaves of the observation; raises UserError where the torso does not fit."""
    inputs = make_inputs(spec, config.torso)
    validate_torso(spec, inputs)
    branch = make_branch(config.critic, inputs, {"head": HeadSize(1, 1.0)})
    return StateValue(branch.init, lambda params, observation: branch.outputs(params, observation)["head"][..., 0])
