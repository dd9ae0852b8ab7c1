"""How agents with a stochastic policy act: what the on-policy algorithms share."""

from agents.api import Action, AgentState, Array, Mode, Observation, Params
from agents.networks.actor_critic import ActorCritic
from envpool_bridge.specs import ArraySpec

EXTRAS = {"behaviour_log_prob": ArraySpec((), "float32")}
"""What `act` adds to each step: the log-probability, in nats, of the action under the policy that chose it."""


def act(
    net: ActorCritic,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Actions of [B, ...] observations with their [B] log-probabilities; values are left to the update."""
    parameters, agent_state = net.step(params, observation, agent_state, is_first)
    distribution = net.distribution
    action = distribution.sample(parameters, keys) if mode is Mode.SAMPLE else distribution.mode(parameters)
    return action, {"behaviour_log_prob": distribution.log_prob(parameters, action)}, agent_state
