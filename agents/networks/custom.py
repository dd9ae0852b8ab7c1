"""Adapter for networks that users write."""

from collections.abc import Callable

from agents.api import Array, Observation, Params
from agents.networks.actor_critic import ActorCritic, InitFn, make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.distributions import Distribution
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec, describe_leaves


def memoryless_network(
    init: InitFn, both: Callable[[Params, Observation], tuple[Array, Array]], distribution: Distribution
) -> ActorCritic:
    """Returns a user's feed-forward network for PPO, IMPALA, A2C and REINFORCE: `make_ppo(config, spec, network)`.

    An action mask in the observation has an effect only if `both` applies it.

    Args:
        init: Returns parameters, given a typed PRNG key (consumed). For a flax module: `lambda key: module.init(key, observation)`.
        both: Returns the distribution's parameters [..., P] and values [...] (reward units) of observations
            [..., *observation] with any number of leading axes. For a flax module: `module.apply`.
        distribution: Action distribution; `agents.networks.distributions.distribution_for(spec)` fits the environment.
    """
    return ActorCritic(
        init=init,
        policy=lambda params, observation: both(params, observation)[0],
        value=lambda params, observation: both(params, observation)[1],
        distribution=distribution,
        initial_state=lambda num_rows: (),
        step=lambda params, observation, state, is_first: (both(params, observation)[0], state),
        unroll=lambda params, observation, state, is_first: (*both(params, observation), state),
        is_recurrent=False,
    )


def bound_network(network: NetworkConfig | ActorCritic, spec: EnvSpec) -> ActorCritic:
    """Returns the network of a configuration, or the given network unchanged.

    Raises:
        UserError: If the given network scales other observations than those of `spec`.
    """
    if not isinstance(network, ActorCritic):
        return make_actor_critic(network, spec)
    if network.spec is not None and network.spec.observation != spec.observation:
        raise UserError(
            f"the network scales other observations than the agent gives it: expected one made for "
            f"{describe_leaves('observation', spec.observation)}, got {describe_leaves('observation', network.spec.observation)}; "
            f"pass its NetworkConfig, or make it from normalized_spec(spec, True) where observations are normalized"
        )
    return network
