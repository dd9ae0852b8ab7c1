"""Acting of agents with a stochastic policy, shared by the on-policy algorithms."""

from typing import Protocol

from agents.api import Action, AgentState, Array, InitialAgentStateFn, Mode, Observation, Params
from agents.distributions import Distribution
from agents.networks.actor_critic import StepFn
from envpool_bridge.spec.specs import ArraySpec

EXTRAS = {"behavior_log_prob": ArraySpec((), "float32")}
"""Extra of each step from `act`: the log-probability, in nats, of the action under the acting policy."""


class PolicyNetwork(Protocol):
    """The part of a network (`ActorCritic`, `ComaNetworks`) that acting uses.

    Attributes:
        step: Returns parameters [B, P] of the action distribution, and the next state.
        distribution: Action distribution.
        initial_state: Returns the initial recurrent state.
    """

    @property
    def step(self) -> StepFn: ...

    @property
    def distribution(self) -> Distribution: ...

    @property
    def initial_state(self) -> InitialAgentStateFn: ...


def act(
    net: PolicyNetwork,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns actions of observations [B, ...], their log-probabilities [B] as extras, and the next state. Computes no values."""
    parameters, agent_state = net.step(params, observation, agent_state, is_first)
    distribution = net.distribution
    action = distribution.sample(parameters, keys) if mode is Mode.SAMPLE else distribution.mode(parameters)
    return action, {"behavior_log_prob": distribution.log_prob(parameters, action)}, agent_state
