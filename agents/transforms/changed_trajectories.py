"""Agents that learn from changed trajectories."""

from collections.abc import Callable
from typing import Any

from agents.api import Agent, Array, LearnerState, Metrics, Params, Summary, Trajectory


def with_changed_trajectories(agent: Agent, change: Callable[[Trajectory], Trajectory]) -> Agent:
    """Returns the agent, which learns from `change(trajectory)`."""
    steps = agent.gradient_steps

    def update(state: LearnerState, batch: Trajectory, key: Array) -> tuple[LearnerState, Metrics]:
        return agent.update(state, change(batch), key)

    if steps is None:
        return agent._replace(update=update)
    inner = steps.prepare

    def prepare(params: Params, extra: Any, batch: Trajectory, key: Array) -> tuple[Any, Summary]:
        return inner(params, extra, change(batch), key)

    return agent._replace(update=update, gradient_steps=steps._replace(prepare=prepare))
