"""Adapter for networks that users write."""

from typing import Protocol

from agents.api import AgentState, Array, Observation, Params
from agents.distributions import Distribution
from agents.networks.actor_critic import ActorCritic, NetworkInitFn, make_actor_critic
from agents.networks.config import NetworkConfig
from envpool_bridge.spec.specs import EnvSpec


class PolicyValueFn(Protocol):
    """Policy parameters [..., P] and values [...] of [..., *observation] observations."""

    def __call__(self, params: Params, observation: Observation) -> tuple[Array, Array]: ...


def memoryless_network(init: NetworkInitFn, both: PolicyValueFn, distribution: Distribution) -> ActorCritic:
    """Returns a user's feed-forward network for PPO, IMPALA, A2C and REINFORCE: `make_ppo(config, spec, network)`.

    An action mask in the observation has an effect only if `both` applies it.

    Args:
        init: Returns parameters, given a typed PRNG key (consumed). For a flax module: `lambda key: module.init(key, observation)`.
        both: Returns the distribution's parameters [..., P] and values [...] (reward units) of observations
            [..., *observation] with any number of leading axes. For a flax module: `module.apply`.
        distribution: Action distribution; `agents.distributions.distribution_for(spec)` fits the environment.
    """

    def policy(params: Params, observation: Observation) -> Array:
        return both(params, observation)[0]

    def value(params: Params, observation: Observation) -> Array:
        return both(params, observation)[1]

    def step(params: Params, observation: Observation, state: AgentState, is_first: Array) -> tuple[Array, AgentState]:
        del is_first
        return policy(params, observation), state

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array
    ) -> tuple[Array, Array, AgentState]:
        del is_first
        return *both(params, observation), state

    return ActorCritic(
        init=init,
        policy=policy,
        value=value,
        distribution=distribution,
        initial_state=lambda num_rows: (),
        step=step,
        unroll=unroll,
        is_recurrent=False,
    )


def bound_network(network: NetworkConfig | ActorCritic, spec: EnvSpec) -> ActorCritic:
    """Returns the network of a configuration, or the given network unchanged."""
    return network if isinstance(network, ActorCritic) else make_actor_critic(network, spec)
