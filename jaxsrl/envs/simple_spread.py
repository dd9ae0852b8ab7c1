"""Simple spread, a task of the multi-agent particle environments, in JAX: agents cover landmarks without touching each other.

Source: Lowe et al. 2017 (arXiv:1706.02275). The rules are those of mpe2's `simple_spread_v3`.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from envpool_bridge.envs.multi_agent_env import TeamReward
from envpool_bridge.envs.suites.options import validate_at_least
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.protocol import Array, JaxStep

_ID = "simple_spread_v3"
_TIME_STEP = 0.1
_DAMPING = 0.25  # share of the velocity that a step takes away
_THRUST = 5.0
_CONTACT_FORCE, _CONTACT_MARGIN = 100.0, 1e-3
_CONTACT_DISTANCE = 0.3  # twice the radius of an agent
_DIRECTIONS = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))


class SpreadState(NamedTuple):
    """State of one environment; units are those of the arena, which begins with sides of 2.

    Attributes:
        position: [A, 2] of the agents.
        velocity: [A, 2], for a unit of time; a step takes 0.1.
        landmark: [A, 2].
        num_steps: [] int32, env steps since the reset.
    """

    position: Array
    velocity: Array
    landmark: Array
    num_steps: Array


@dataclasses.dataclass(frozen=True)
class SimpleSpread:
    """`JaxEnv` of A agents and A landmarks, all at random places. An agent stays (0) or pushes left, right, down or up.

    An agent observes its velocity, its position, the landmarks and the other agents relative to it, and messages, which are
    zeros. An agent's reward is `local_ratio` of minus the number of agents it touches, and the rest of minus the distances from
    each landmark to the nearest agent.

    Attributes:
        num_agents: A.
        local_ratio: weight of an agent's own collisions.
        max_cycles: env steps of an episode.
        team_reward: "own" gives every agent its reward; "sum" and "mean" give all agents that of the team.
        global_state: whether the observation has a leaf "state" for value functions: the observations of all agents.
    """

    num_agents: int = 3
    local_ratio: float = 0.5
    max_cycles: int = 25
    team_reward: TeamReward = "own"
    global_state: bool = False

    def __post_init__(self) -> None:
        validate_at_least(1, num_agents=self.num_agents, max_cycles=self.max_cycles)
        if not 0.0 <= self.local_ratio <= 1.0:
            raise UserError(f"option local_ratio must be between 0 and 1, got {self.local_ratio}")

    def spec(self) -> EnvSpec:
        """Returns the spec of an agent."""
        size = 4 + 2 * self.num_agents + 4 * (self.num_agents - 1)
        seen: Any = ArraySpec((size,), "float32")
        if self.global_state:
            seen = {"observation": seen, "state": ArraySpec((self.num_agents * size,), "float32")}
        action = DiscreteSpec(len(_DIRECTIONS))
        agents = tuple(AgentSpec(f"agent_{number}", seen, action) for number in range(self.num_agents))
        return EnvSpec(_ID, seen, action, agents=agents, critic_only=("state",) if self.global_state else ())

    def reset(self, key: Array) -> tuple[SpreadState, Any]:
        """Places agents and landmarks uniformly; the agents are at rest."""
        position, landmark = jax.random.uniform(key, (2, self.num_agents, 2), minval=-1.0, maxval=1.0)
        state = SpreadState(position, jnp.zeros_like(position), landmark, jnp.int32(0))
        return state, self._observation(state)

    def step(self, state: SpreadState, action: Array, key: Array) -> JaxStep:
        """Moves all agents; `action` is [A]. The rules have no chance, so `key` is unused."""
        del key
        force = _THRUST * jnp.asarray(_DIRECTIONS)[action] + _contact_forces(state.position)
        position = state.position + _TIME_STEP * state.velocity
        velocity = (1.0 - _DAMPING) * state.velocity + _TIME_STEP * force
        after = SpreadState(position, velocity, state.landmark, state.num_steps + 1)
        return JaxStep(
            after,
            self._observation(after),
            self._reward(after),
            jnp.zeros((), bool),
            after.num_steps >= self.max_cycles,
        )

    def _observation(self, state: SpreadState) -> Any:
        count = self.num_agents
        landmarks = state.landmark - state.position[:, None]
        others = state.position - state.position[:, None]
        keep = [[column for column in range(count) if column != row] for row in range(count)]
        others = jnp.take_along_axis(others, jnp.asarray(keep, jnp.int32).reshape(count, count - 1, 1), axis=1)
        messages = jnp.zeros((count, 2 * (count - 1)), jnp.float32)
        parts = (state.velocity, state.position, landmarks.reshape(count, -1), others.reshape(count, -1), messages)
        seen = jnp.concatenate(parts, axis=1)
        if not self.global_state:
            return seen
        return {"observation": seen, "state": jnp.broadcast_to(seen.reshape(-1), (count, seen.size))}

    def _reward(self, state: SpreadState) -> Array:
        distance = jnp.linalg.norm(state.landmark[:, None] - state.position, axis=-1)
        uncovered = jnp.sum(jnp.min(distance, axis=1))
        touched = (_distances(state.position) < _CONTACT_DISTANCE) & ~jnp.eye(self.num_agents, dtype=bool)
        own = -self.local_ratio * jnp.sum(touched, axis=1) - (1.0 - self.local_ratio) * uncovered
        if self.team_reward == "sum":
            own = jnp.full_like(own, jnp.sum(own))
        elif self.team_reward == "mean":
            own = jnp.full_like(own, jnp.mean(own))
        return own.astype(jnp.float32)


def _distances(position: Array) -> Array:
    """Returns the distances between agents, [A, A], at least 1e-6 so that one may divide by them; 1 from an agent to itself."""
    apart = position[:, None] - position
    squared = jnp.sum(jnp.square(apart), axis=-1)
    return jnp.sqrt(jnp.where(jnp.eye(len(position), dtype=bool), 1.0, jnp.maximum(squared, 1e-12)))


def _contact_forces(position: Array) -> Array:
    """Returns the sum of the forces [A, 2] by which the other agents push each agent away."""
    apart, distance = position[:, None] - position, _distances(position)
    depth = _CONTACT_MARGIN * jnp.logaddexp(0.0, (_CONTACT_DISTANCE - distance) / _CONTACT_MARGIN)
    return jnp.sum(_CONTACT_FORCE * apart * (depth / distance)[..., None], axis=1)
