"""Observation normalization around agents that learn from replay, as pure functions.

Mean and deviation are those of all observations that were sampled so far, each sample's own included. With a dataset they approach
those of the dataset. They are part of the parameters, so that `act` uses the same ones.
"""

import dataclasses
from typing import Any

from agents.api import (
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
from agents.networks.observation_scale import normalized_leaves
from agents.transforms.normalization import NormalizationConfig, Normalizer
from envpool_bridge.spec.specs import EnvSpec

_AGENT, _STATISTICS = "agent", "statistics"


def with_normalized_samples(agent: ReplayAgent, spec: EnvSpec, is_on: bool, without: str = "") -> ReplayAgent:
    """Returns the agent with the `normalized_leaves` of its observations shifted and scaled to mean 0 and deviation 1.

    Its parameters become `{"agent": ..., "statistics": ...}`; its optimizer's state and `extra` stay what they are. Before the
    first sample it acts on observations of zeros.

    Args:
        agent: Agent to wrap, without transforms of samples. It is returned unchanged where nothing is normalized.
        spec: Specification of the environment.
        is_on: Whether to normalize. Observations without numbers, such as images, never are.
        without: Name of an item of the observation that stays what it is.
    """
    if not is_on or not normalized_leaves(spec):
        return agent
    normalizer = Normalizer(NormalizationConfig(observations=True), spec, discount=1.0)

    def normalized(statistics: dict[str, Any], observation: Observation) -> Observation:
        new = normalizer.observation(statistics, observation)
        return {**new, without: observation[without]} if without else new

    def init(key: Array) -> LearnerState:
        state = agent.init(key)
        return dataclasses.replace(state, params={_AGENT: state.params, _STATISTICS: normalizer.init()})

    def act(
        params: Params, observation: Observation, agent_state: AgentState, is_first: Array, keys: Array, mode: Mode
    ) -> tuple[Action, dict[str, Array], AgentState]:
        observation = normalized(params[_STATISTICS], observation)
        return agent.act(params[_AGENT], observation, agent_state, is_first, keys, mode)

    def update(state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]:
        window, statistics = sample.trajectory, state.params[_STATISTICS]
        statistics = normalizer.merged(statistics, normalizer.batch(statistics, window))
        observation = normalized(statistics, window.observation)
        sample = dataclasses.replace(sample, trajectory=dataclasses.replace(window, observation=observation))
        inner = dataclasses.replace(state, params=state.params[_AGENT])
        new, metrics, priority = agent.update(inner, sample, key)
        return dataclasses.replace(new, params={_AGENT: new.params, _STATISTICS: statistics}), metrics, priority

    data, sync = agent.data, agent.data.sync_acting_params
    if sync is not None:

        def sync_inner(state: LearnerState) -> LearnerState:
            new = sync(dataclasses.replace(state, params=state.params[_AGENT]))
            return dataclasses.replace(new, params={**state.params, _AGENT: new.params})

        data = dataclasses.replace(data, sync_acting_params=sync_inner)
    return agent._replace(init=init, act=act, update=update, data=data)
