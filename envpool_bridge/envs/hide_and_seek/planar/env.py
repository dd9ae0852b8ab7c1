"""One planar world as a parallel multi-agent environment: for wrappers, pictures and PettingZoo."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import Game
from envpool_bridge.envs.hide_and_seek.layout import AGENT_SIZE, RAMP_SIZE, Layout
from envpool_bridge.envs.hide_and_seek.phases import (
    POSE_HALF_X,
    POSE_HALF_Y,
    POSE_X,
    POSE_Y,
    rows_of_doors,
    rows_of_walls,
)
from envpool_bridge.envs.hide_and_seek.planar.kernel import (
    NEVER,
    failure_of,
    make_ends,
    make_kit,
    make_worlds,
    step_worlds,
)
from envpool_bridge.envs.hide_and_seek.planar.observe import LEAVES, make_shown
from envpool_bridge.envs.hide_and_seek.planar.picture import picture_of
from envpool_bridge.envs.hide_and_seek.planar.play import stats_of
from envpool_bridge.envs.hide_and_seek.planar.state import OVER, PLACED
from envpool_bridge.envs.hide_and_seek.spaces import Teams, observation_space
from envpool_bridge.envs.parallel_env import ParallelReset, ParallelStep
from envpool_bridge.errors import UserError


class PlanarHideAndSeek(Teams):
    """Hide-and-seek on the planar engine, with the interface, observations and infos of the MuJoCo game.

    Args:
        game: Rules; RandomWalls() if None.
        render_mode: "rgb_array", or None.

    Attributes:
        worlds: [1] record of the world; see `state`.
    """

    def __init__(self, game: Game | None = None, render_mode: str | None = None) -> None:
        super().__init__(game, render_mode)
        rows = len(self.possible_agents)
        self.worlds = make_worlds(1)
        self._kit, self._ends, self._shown = make_kit(self.game), make_ends(1, rows), make_shown(self.game, rows, True)
        self._leaf_names = tuple(observation_space(self.game).spaces)
        self._actions = np.zeros((rows, 5), np.int32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        """Starts an episode; see `HideAndSeek.reset`."""
        layout: Layout | None = (options or {}).get("layout")
        if layout is None:
            self.worlds["over"] = OVER
        else:
            self._place(layout)
        self._run_kernel(-1 if seed is None else seed)
        world = self.worlds[0]
        self._begin(int(world["num_hiders"]), int(world["num_agents"]))
        return self._observed(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Steps all agents by 0.075 s."""
        names = self.agents
        rows = [self.possible_agents.index(name) for name in names]
        self._actions[rows] = [actions[name] for name in names]
        self._run_kernel(-1)
        world, over = self.worlds[0], bool(self.worlds["over"][0])
        infos = stats_of(world) if over else {}
        result = (
            self._observed(),
            dict(zip(names, self._ends.reward[rows].tolist(), strict=True)),
            dict.fromkeys(names, False),
            dict.fromkeys(names, over),
            {name: dict(infos) for name in names},
        )
        if over:
            self.agents = []
        return result

    def state(self) -> np.ndarray:
        """Returns the global state, [S] float32. Raises RuntimeError before the first reset."""
        self._validate_started()
        return self._shown.state[0].copy()

    def render(self) -> np.ndarray:
        """Returns a picture from above, [480, 480, 3] uint8; see `picture_of`. Raises RuntimeError before the first reset."""
        self._validate_started()
        return picture_of(self.worlds[0], self.game.floor_size)

    def close(self) -> None:
        """Returns at once: a world is an array."""

    def _validate_started(self) -> None:
        if self.worlds["num_agents"][0] == 0:
            raise RuntimeError("hide-and-seek: call reset() first")

    def _place(self, layout: Layout) -> None:
        """Writes a layout into the world."""
        world, agents, boxes = self.worlds[0], len(layout.agents), len(layout.boxes)
        world["over"] = PLACED
        walls, doors, things = rows_of_walls(layout.walls), rows_of_doors(layout.doors), boxes + len(layout.ramps)
        world["num_hiders"], world["num_agents"], world["num_boxes"] = layout.num_hiders, agents, boxes
        world["num_things"], world["num_walls"], world["num_doors"] = things, len(walls), len(doors)
        world["wall"][: len(walls)], world["door"][: len(doors)] = walls, doors
        at, half = [POSE_X, POSE_Y], [POSE_HALF_X, POSE_HALF_Y]
        world["now"][:agents, at] = layout.agents + AGENT_SIZE / 2
        of_boxes, of_ramps = world["now"][agents : agents + boxes], world["now"][agents + boxes : agents + things]
        of_boxes[:, half], of_ramps[:, half] = layout.box_sizes[:, :2] / 2, RAMP_SIZE / 2
        of_boxes[:, at], of_ramps[:, at] = layout.boxes + of_boxes[:, half], layout.ramps + RAMP_SIZE / 2

    def _run_kernel(self, seed: int) -> None:
        seeds, limits = np.full(1, seed), np.full(1, NEVER)
        status = step_worlds(self.worlds, self._kit, self._actions, seeds, limits, self._shown, self._ends)
        failure = failure_of(status, self._actions)
        if failure:
            raise UserError(f"hide-and-seek: {failure}")

    def _observed(self) -> dict[str, dict[str, np.ndarray]]:
        shown = dict(zip(LEAVES, self._shown, strict=True))
        leaves = {name: shown[name] for name in self._leaf_names}
        places = [self.possible_agents.index(name) for name in self.agents]
        return {
            name: {leaf: rows[place].copy() for leaf, rows in leaves.items()}
            for name, place in zip(self.agents, places, strict=True)
        }
