"""Steps of a team instead of its agents, and n-step targets of the team's value. Pure functions of arrays.

A team's episode lasts as long as any of its agents: a death ends only the dead agent's part of the value.
"""

from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array, Trajectory
from agents.ops.n_step import n_step_rewards, take_steps
from agents.ops.team_rows import by_agent


class TeamSteps(NamedTuple):
    """L steps of N teams of n agents.

    Attributes:
        reward: [L, N] float32, the mean reward of the agents that are present; 0 where none is.
        terminated: [L, N] bool, no agent remains to bootstrap from.
        truncated: [L, N] bool, the episode was cut.
        valid: [L, N] bool, at least one agent acted.
        present: [L, N n] bool, the row's agent acted.
        follows: [L, N n] bool, the row's agent is present at `observation[t + 1]`, also where the episode was cut.
    """

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    present: Array
    follows: Array


def team_steps(trajectory: Trajectory, num_agents: int) -> TeamSteps:
    """Returns the team's steps of a window [L, N n, ...], whose teams are adjacent rows.

    An agent that joins after the window's last step does not count.
    """
    valid = trajectory.valid
    is_last = jnp.arange(valid.shape[0])[:, None] == valid.shape[0] - 1
    acts_next = jnp.roll(valid, -1, axis=0) & ~is_last
    remains = valid & ~trajectory.terminated

    def any_agent(rows: Array) -> Array:
        return jnp.any(by_agent(num_agents, 1, rows), axis=2)

    # A failure cuts an episode without a flag where a slot begins: then no agent of the team acts at the next step.
    is_cut = valid & ~jnp.repeat(any_agent(acts_next), num_agents, axis=1)
    follows = jnp.where(trajectory.terminated | trajectory.truncated | is_last | is_cut, remains, acts_next)

    total = jnp.sum(by_agent(num_agents, 1, jnp.where(valid, trajectory.reward, 0.0)), axis=2)
    count = jnp.sum(by_agent(num_agents, 1, valid), axis=2)
    acted, continues = any_agent(valid), any_agent(follows)
    return TeamSteps(
        reward=total / jnp.maximum(count, 1),
        terminated=acted & ~continues,
        truncated=acted & continues & ~any_agent(acts_next),
        valid=acted,
        present=valid,
        follows=follows,
    )


def team_targets(steps: TeamSteps, next_value: Array, *, discount: float, n_step: int) -> Array:
    """Returns n-step targets of the team's value.

    Args:
        steps: Steps of the team.
        next_value: [L, N] float32, values of `observation[t + 1]` from the agents that follow.
        discount: g in [0, 1].
        n_step: n >= 1.

    Returns:
        [L, N] float32; 0 where no agent acted.
    """
    rewards = n_step_rewards(
        steps.reward, steps.terminated, steps.truncated, steps.valid, discount=discount, n_step=n_step
    )
    # `position` counts observations; `next_value` does not contain the first one.
    bootstrap = take_steps(next_value, jnp.maximum(rewards.position - 1, 0))
    return rewards.reward + jnp.where(rewards.discount > 0.0, rewards.discount * bootstrap, 0.0)
