"""A policy of any actions, without a value function."""

from collections.abc import Callable
from typing import NamedTuple

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.distributions import Distribution
from agents.networks.observation_inputs import make_inputs, validate_torso
from agents.networks.policy_head import make_policy_head
from envpool_bridge.spec.specs import EnvSpec


class Policy(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        parameters: Maps (params, observation [B, ...]) to the parameters [B, P] of the distribution.
        distribution: Action distribution.
    """

    init: Callable[[Array], Params]
    parameters: Callable[[Params, Observation], Array]
    distribution: Distribution


def make_policy(config: NetworkConfig, spec: EnvSpec) -> Policy:
    """Returns the policy; leaves that only a critic may see are no input.

    Raises:
        UserError: If the torso does not fit the observations, squashing or the action mask does not fit the actions, or the
            configuration has settings of critics or gSDE.
    """
    validate_read(config, "a policy that imitates", "squash", "initial_log_std", "log_std")
    inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, inputs)
    head = make_policy_head(config, spec)
    branch = make_branch(config, inputs, {"head": HeadSize(head.num_outputs, 0.01)})

    def parameters(params: Params, observation: Observation) -> Array:
        outputs = branch.outputs(params["branch"], observation)["head"]
        return head.parameters(params, outputs, observation)

    return Policy(lambda key: {"branch": branch.init(key), **head.params}, parameters, head.distribution)
