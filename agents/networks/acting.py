"""How agents with a stochastic policy act: what the on-policy algorithms share."""

from typing import Protocol

from agents.api import Action, AgentState, Array, InitialAgentStateFn, Mode, Observation, Params
from agents.distributions import Distribution
from agents.networks.actor_critic import StepFn
from envpool_bridge.spec.specs import ArraySpec

EXTRAS = {"behavior_log_prob": ArraySpec((), "float32")}
"""What `act` adds to each step: the log-probability, in nats, of the action under the policy that chose it."""


class PolicyNetwork(Protocol):
    """What acting needs of a network (`ActorCritic`, `ComaNetworks`), whatever else it computes.

    Attributes:
        step: parameters [B, P] of the action distribution, and the next state.
        distribution: over actions.
        initial_state: what a policy with memory begins with.
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
    """Actions of [B, ...] observations, each row's by its own alone, with their [B] log-probabilities.

    Values are left to the update.
    """
    parameters, agent_state = net.step(params, observation, agent_state, is_first)
    distribution = net.distribution
    action = distribution.sample(parameters, keys) if mode is Mode.SAMPLE else distribution.mode(parameters)
    return action, {"behavior_log_prob": distribution.log_prob(parameters, action)}, agent_state
