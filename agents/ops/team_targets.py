"""What a team's value learns from: steps of the team instead of its agents', and targets of n steps. Mathematics, no networks.

A team lives as long as any of its agents: a death ends nothing but the dead agent's part of the value.
"""

from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array, Trajectory
from agents.ops.n_step import at_positions, n_step
from agents.ops.team_rows import by_agent


class TeamSteps(NamedTuple):
    """L steps of N teams of n agents.

    Attributes:
        reward: [L, N] float32, the mean reward of the agents that are there; 0 where nobody is.
        terminated: [L, N] bool, nobody is left whose value could go on.
        truncated: [L, N] bool, the episode was cut.
        valid: [L, N] bool, somebody acted.
        present: [L, N n] bool, whether the row's agent acted.
        follows: [L, N n] bool, whether it is there at `observation[t + 1]`: also where the episode was cut.
    """

    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    present: Array
    follows: Array


def team_steps(trajectory: Trajectory, num_agents: int) -> TeamSteps:
    """The team's steps of a window, [L, N n, ...] each, whose teams lie side by side.

    An agent that joins after the window's last step is not seen there.
    """
    valid = trajectory.valid
    is_last = jnp.arange(valid.shape[0])[:, None] == valid.shape[0] - 1
    acts_next = jnp.roll(valid, -1, axis=0) & ~is_last
    remains = valid & ~trajectory.terminated
    follows = jnp.where(trajectory.terminated | trajectory.truncated | is_last, remains, acts_next)

    def of_any(rows: Array) -> Array:
        return jnp.any(by_agent(num_agents, 1, rows), axis=2)

    total = jnp.sum(by_agent(num_agents, 1, jnp.where(valid, trajectory.reward, 0.0)), axis=2)
    count = jnp.sum(by_agent(num_agents, 1, valid), axis=2)
    acted, goes_on = of_any(valid), of_any(follows)
    return TeamSteps(
        reward=total / jnp.maximum(count, 1),
        terminated=acted & ~goes_on,
        truncated=acted & goes_on & ~of_any(acts_next),
        valid=acted,
        present=valid,
        follows=follows,
    )


def team_targets(steps: TeamSteps, next_value: Array, *, discount: float, num_steps: int) -> Array:
    """Targets of the team's value: up to n rewards, and the value of what follows.

    Args:
        steps: of the team.
        next_value: [L, N] float32, of `observation[t + 1]`, counting the agents that follow.
        discount: g in [0, 1].
        num_steps: n.

    Returns:
        [L, N] float32; 0 where nobody acted.
    """
    found = n_step(steps.reward, steps.terminated, steps.truncated, steps.valid, discount=discount, num_steps=num_steps)
    # `position` counts observations, the first of which follows no step.
    following = at_positions(next_value, jnp.maximum(found.position - 1, 0))
    return found.reward + jnp.where(found.discount > 0.0, found.discount * following, 0.0)
