"""Transformation of the trajectories that an agent learns from."""

from collections.abc import Callable
from typing import Any

from agents.api import Agent, Array, LearnerState, Metrics, Params, Summary, Trajectory, UpdateFn


def with_changed_trajectories(agent: Agent, change: Callable[[Trajectory], Trajectory]) -> Agent:
    """Returns an agent that learns from `change(trajectory)`; each of its groups changes its own rows."""

    def changed(update: UpdateFn) -> UpdateFn:
        def learn(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
            return update(state, change(batch), key)

        return learn

    groups = tuple(group._replace(update=changed(group.update)) for group in agent.groups)
    agent = agent._replace(update=changed(agent.update), groups=groups)
    inner_advantage = agent.advantage
    if inner_advantage is not None:

        def advantage(params: Params, extra: Any, batch: Trajectory) -> tuple[Array, Array]:
            return inner_advantage(params, extra, change(batch))

        agent = agent._replace(advantage=advantage)
    if agent.gradient_steps is None:
        return agent
    inner = agent.gradient_steps.prepare

    def prepare(params: Params, extra: Any, batch: Trajectory, key: Array, num_updates: Array) -> tuple[Any, Summary]:
        return inner(params, extra, change(batch), key, num_updates)

    return agent._replace(gradient_steps=agent.gradient_steps._replace(prepare=prepare))
