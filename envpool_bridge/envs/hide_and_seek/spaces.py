"""Agents and spaces of the game, equal in both engines."""

from typing import Any, ClassVar, Self

import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.hide_and_seek.game import STEP_SECONDS, Game, RandomWalls
from envpool_bridge.envs.parallel_env import AlikeAgents

FORCES = 11  # evenly spaced from -0.9 to 0.9; 5 is none
ACTION_SIZES = (FORCES, FORCES, FORCES, 2, 2)  # force along x, along y, torque; pull; lock
AGENT_FEATURES = 10  # position 4, velocity 4, is a hider, progress of the preparation phase
POSE = 9  # x, y, z, cos and sin of the turn, velocity 4
SELF, AGENTS, BOXES, RAMPS, LIDAR = "observation_self", "agent_qpos_qvel", "box_obs", "ramp_obs", "lidar"
MASK = "_mask"


def observation_space(game: Game) -> spaces.Dict:
    """Returns the space of each agent, without empty sets (no other agents, boxes or ramps)."""
    posed = POSE + 3 * game.observes_sizes  # and their sizes, if observed; ramps have zeros in place of a size
    sets = {
        AGENTS: (game.seats - 1, AGENT_FEATURES),
        BOXES: (game.boxes[1], posed + 3),  # locks: own, team, any
        RAMPS: (game.ramps, posed + 3 * game.locks_ramps),  # locks likewise, if ramps have any
    }
    shown: dict[str, spaces.Space] = {SELF: _unbounded((AGENT_FEATURES,)), LIDAR: _unbounded((game.lidar_rays,))}
    for name, shape in sets.items():
        if shape[0]:
            shown[name] = _unbounded(shape)
            shown[name + MASK] = spaces.MultiBinary(shape[0])
    return spaces.Dict(shown)


def state_space(game: Game) -> spaces.Box:
    """Returns the space of the global state."""
    per_thing = (POSE + 3 + 2, POSE + 2)
    return _unbounded((1 + game.seats * AGENT_FEATURES + game.boxes[1] * per_thing[0] + game.ramps * per_thing[1],))


def _unbounded(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


class Teams(AlikeAgents):
    """Base of the game as a parallel environment: agents "hider_0", ..., "seeker_0", ... with equal spaces.

    Args:
        game: Rules; RandomWalls() if None.
        render_mode: "rgb_array", or None.

    Attributes:
        possible_agents: All agents that may play.
        agents: Agents of the present episode; none before the first reset and after an episode.
        game: Rules.
        state_space: Space of the global state.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "hide_and_seek",
        "render_modes": ["rgb_array"],
        "render_fps": 1 / STEP_SECONDS,
    }

    def __init__(self, game: Game | None = None, render_mode: str | None = None) -> None:
        self.game = RandomWalls() if game is None else game
        self.render_mode = render_mode
        self._hiders = [f"hider_{number}" for number in range(self.game.hiders)]
        self._seekers = [f"seeker_{number}" for number in range(self.game.seekers)]
        self.possible_agents: list[str] = self._hiders + self._seekers
        self.agents: list[str] = []
        self.state_space = state_space(self.game)
        self._observation_space = observation_space(self.game)
        self._action_space = spaces.MultiDiscrete(list(ACTION_SIZES))

    @property
    def unwrapped(self) -> Self:
        """The environment itself, for PettingZoo's tools."""
        return self

    def _begin(self, num_hiders: int, num_agents: int) -> None:
        """Sets the agents of an episode."""
        self.agents = self._hiders[:num_hiders] + self._seekers[: num_agents - num_hiders]
