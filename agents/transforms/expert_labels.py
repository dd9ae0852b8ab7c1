"""DAgger: an expert labels the states of the agent that learns to imitate it. Pure functions.

Source: Ross, Gordon and Bagnell 2011 (arXiv:1011.0686), algorithm 3.1. Each update is a round: its steps join those of all
earlier rounds in replay, and the agent learns from the expert's actions in them. The expert acts in a share of the steps.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import (
    ActFn,
    Action,
    AgentState,
    Array,
    LearnerState,
    Metrics,
    Mode,
    Observation,
    Params,
    ReplayAgent,
    Sample,
)
from agents.ops.schedules import Schedule
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from envpool_bridge.spec.tree import is_dict, is_tuple

LABEL = "expert_action"
"""Name of the extra that contains the expert's action of each step."""
_AGENT, _SHARE = "agent", "expert_share"


class Expert(NamedTuple):
    """A policy without memory, which does not learn.

    Attributes:
        act: Function `act` of its agent.
        params: Parameters of the expert, numpy arrays; a constant of the compiled `act`.
    """

    act: ActFn
    params: Params


class LabeledAgent(NamedTuple):
    """An agent and its expert.

    Attributes:
        agent: Learns from the actions of a sample.
        expert: Labels steps; None for an agent that only acts.
        share: Probability that the expert acts, as a function of `num_updates`.
    """

    agent: ReplayAgent
    expert: Expert | None
    share: Schedule


def with_expert_labels(agent: ReplayAgent, spec: EnvSpec, expert: Expert | None, share: Schedule) -> ReplayAgent:
    """Returns the agent that learns from the expert's action in each step.

    Its parameters become `{"agent": ..., "expert_share": ...}`. Greedy actions are its own, and so are their labels.

    Args:
        agent: Learns from the actions of a sample alone (BC).
        spec: Specification of the environment.
        expert: Labels steps; None for an agent that only acts, such as one that is loaded.
        share: Probability that the expert acts in a step, as a function of `num_updates`.

    Raises:
        UserError: Actions have several parts.
    """
    leaf = spec.action
    if is_dict(leaf) or is_tuple(leaf):
        raise UserError(f"{spec.env_id}: an expert labels actions of one array or number: got actions of several parts")
    labeled = LabeledAgent(agent, expert, share)
    data = dataclasses.replace(agent.data, sync_acting_params=partial(sync_share, labeled))
    return agent._replace(
        init=partial(init, labeled),
        act=partial(act, labeled),
        update=partial(update, labeled),
        extras={**agent.extras, LABEL: ArraySpec(leaf.stored_shape, leaf.dtype)},
        data=data,
    )


def init(labeled: LabeledAgent, key: Array) -> LearnerState:
    """Returns the initial learner state. `key` is consumed."""
    state = labeled.agent.init(key)
    return _wrap(labeled, state)


def sync_share(labeled: LabeledAgent, state: LearnerState) -> LearnerState:
    """Returns the state with the expert's share of its number of updates in the parameters."""
    inner, sync = _unwrap(state), labeled.agent.data.sync_acting_params
    return _wrap(labeled, inner if sync is None else sync(inner))


def act(
    labeled: LabeledAgent,
    params: Params,
    observation: Observation,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Action, dict[str, Array], AgentState]:
    """Returns the agent's action, or the expert's in its share of the steps, and the expert's as an extra."""
    agent_keys, expert_keys, choice_keys = jax.vmap(partial(jax.random.split, num=3), out_axes=1)(keys)
    own, extras, state = labeled.agent.act(params[_AGENT], observation, agent_state, is_first, agent_keys, mode)
    if labeled.expert is None or mode is Mode.GREEDY:
        return own, {**extras, LABEL: own}, state
    label = labeled.expert.act(labeled.expert.params, observation, (), is_first, expert_keys, Mode.GREEDY)[0]
    expert_acts = jax.vmap(jax.random.uniform)(choice_keys) < params[_SHARE]
    action = jnp.where(expert_acts.reshape(-1, *[1] * (own.ndim - 1)), label, own)
    return action, {**extras, LABEL: label}, state


def update(
    labeled: LabeledAgent, state: LearnerState, sample: Sample, key: Array
) -> tuple[LearnerState, Metrics, Array]:
    """Returns the state after one gradient step towards the labels, metrics, and priorities. Consumes `key`."""
    steps = sample.trajectory
    sample = dataclasses.replace(sample, trajectory=dataclasses.replace(steps, action=steps.extras[LABEL]))
    inner, metrics, priority = labeled.agent.update(_unwrap(state), sample, key)
    new = dataclasses.replace(inner, params={**state.params, _AGENT: inner.params})
    return new, {**metrics, "imitation/expert_share": state.params[_SHARE]}, priority


def _wrap(labeled: LabeledAgent, state: LearnerState) -> LearnerState:
    params: dict[str, Any] = {_AGENT: state.params, _SHARE: labeled.share(state.num_updates)}
    return dataclasses.replace(state, params=params)


def _unwrap(state: LearnerState) -> LearnerState:
    return dataclasses.replace(state, params=state.params[_AGENT])
