"""Networks that users write themselves, as an agent takes them."""

from typing import Protocol

from agents.api import AgentState, Array, Observation, Params
from agents.distributions import Distribution
from agents.networks.actor_critic import ActorCritic, NetworkInitFn, make_actor_critic
from agents.networks.config import NetworkConfig
from envpool_bridge.spec.specs import EnvSpec


class BothFn(Protocol):
    """Policy parameters [..., P] and values [...] of [..., *observation] observations."""

    def __call__(self, params: Params, observation: Observation) -> tuple[Array, Array]: ...


def memoryless_network(init: NetworkInitFn, both: BothFn, distribution: Distribution) -> ActorCritic:
    """Returns a network of one's own, without memory, for PPO, IMPALA, A2C and REINFORCE: `make_ppo(config, spec, network)`.

    What such a network makes of the observation is its own affair: an action mask in it counts only where `both` applies it.

    Args:
        init: parameters from a typed PRNG key (consumed); of a flax module, `lambda key: module.init(key, observation)`.
        both: the distribution's parameters [..., P] and values [...] (reward units) of observations [..., *observation] with any
            number of axes in front; of a flax module, `module.apply`.
        distribution: over actions; `agents.distributions.distribution_for(spec)` fits the environment.
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
        remembers=False,
    )


def bound_network(network: NetworkConfig | ActorCritic, spec: EnvSpec) -> ActorCritic:
    """Returns the network that a configuration describes, or one of the user's own as it is."""
    return network if isinstance(network, ActorCritic) else make_actor_critic(network, spec)
