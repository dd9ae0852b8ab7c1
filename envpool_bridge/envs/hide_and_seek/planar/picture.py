"""Pictures of a planar world from above, drawn with numpy alone: each shape covers the pixels that its distance field says."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import HALF_CONE
from envpool_bridge.envs.hide_and_seek.phases import POSE_COS, POSE_HALF_X, POSE_HALF_Y, POSE_SIN, POSE_X, POSE_Y
from envpool_bridge.envs.hide_and_seek.planar.contacts import AGENT_RADIUS
from envpool_bridge.envs.hide_and_seek.planar.state import TURN, WALL_HALF_X, WALL_HALF_Y, WALL_TOP, WALL_X, WALL_Y, Z

SIZE = 480  # pixels of a side
_MARGIN = 0.4  # metres around the floor
_FLOOR, _BEYOND, _DARK = (236, 236, 232), (205, 205, 200), (60, 60, 60)
_HIDER, _SEEKER = (45, 105, 220), (220, 55, 50)
_INNER_WALL, _OUTER_WALL, _DOOR = (70, 130, 80), (110, 110, 110), (190, 215, 190)
_BOX, _RAMP_LOW, _RAMP_HIGH = (200, 165, 120), (255, 240, 170), (215, 160, 20)
_CONE_RADIUS, _CONE_STRENGTH = 1.2, 0.16  # metres; share of the color
_EDGE, _LOCK_EDGE = 0.012, 0.04  # metres: half of the width of the edge of a thing
_HIGH = 0.5  # metres above the floor at which an agent is drawn with its full ring


class _Canvas:
    """Pixels of the floor of a game; points are in metres, y upwards."""

    def __init__(self, floor_size: float) -> None:
        self._pixel = (floor_size + 2 * _MARGIN) / SIZE
        places = (np.arange(SIZE) + 0.5) * self._pixel - _MARGIN
        self._x, self._y = places[None, :], places[::-1, None]
        self.pixels = np.empty((SIZE, SIZE, 3))
        self.pixels[:] = _BEYOND

    def disc(self, x: float, y: float, radius: float, color: Any, share: float = 1.0) -> None:
        """Paints a disc."""
        self._paint(np.hypot(self._x - x, self._y - y) - radius, color, share)

    def sector(self, x: float, y: float, heading: float, color: Any) -> None:
        """Paints the part of a disc that an agent looks at."""
        dx, dy = self._x - x, self._y - y
        away = np.hypot(dx, dy)
        cosine = (np.cos(heading) * dx + np.sin(heading) * dy) / np.maximum(away, 1e-9)
        outside = (np.cos(HALF_CONE) - cosine) * away
        self._paint(np.maximum(away - _CONE_RADIUS, outside), color, _CONE_STRENGTH)

    def rectangle(self, pose: Any, color: Any, far_color: Any = None) -> None:
        """Paints the footprint of a pose; with a second color, from the first at its high end (-y) to it at the low end."""
        along, across = self._within(pose)
        distance = np.maximum(np.abs(along) - pose[POSE_HALF_X], np.abs(across) - pose[POSE_HALF_Y])
        if far_color is not None:
            share = np.clip(across / (2 * pose[POSE_HALF_Y]) + 0.5, 0.0, 1.0)[..., None]
            color = (1 - share) * np.array(color) + share * np.array(far_color)
        self._paint(distance, color, 1.0)

    def frame(self, pose: Any, edge: float, color: Any) -> None:
        """Paints the edge of a footprint, twice `edge` wide."""
        along, across = self._within(pose)
        distance = np.maximum(np.abs(along) - pose[POSE_HALF_X], np.abs(across) - pose[POSE_HALF_Y])
        self._paint(np.abs(distance + edge) - edge, color, 1.0)

    def line(self, start: Any, end: Any, width: float, color: Any, share: float = 1.0) -> None:
        """Paints a line between two points."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        square = max(dx * dx + dy * dy, 1e-12)
        along = np.clip(((self._x - start[0]) * dx + (self._y - start[1]) * dy) / square, 0.0, 1.0)
        self._paint(
            np.hypot(self._x - start[0] - along * dx, self._y - start[1] - along * dy) - width / 2, color, share
        )

    def _within(self, pose: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns all pixels in the frame of a pose."""
        dx, dy = self._x - pose[POSE_X], self._y - pose[POSE_Y]
        return pose[POSE_COS] * dx + pose[POSE_SIN] * dy, pose[POSE_COS] * dy - pose[POSE_SIN] * dx

    def _paint(self, distance: np.ndarray, color: Any, share: float) -> None:
        cover = share * np.clip(0.5 - distance / self._pixel, 0.0, 1.0)[..., None]
        self.pixels += cover * (np.asarray(color, float) - self.pixels)


def picture_of(world: np.void, floor_size: float) -> np.ndarray:
    """Returns a picture of a world from above, [480, 480, 3] uint8, x to the right, y upwards.

    Hiders are blue, seekers red, each with its cone of sight (shortened) and a bar to what it holds; a white ring grows with
    the height of its feet. A line joins a seeker and a hider that it sees. Ramps are dark where they are high. Locked things
    have a frame in the color of the team that locked them. Until preparation ends, seekers are pale.
    """
    canvas = _Canvas(floor_size)
    half = floor_size / 2
    canvas.rectangle((half, half, 0.0, 1.0, 0.0, half, half), _FLOOR)
    for door in world["door"][: world["num_doors"]]:
        canvas.line((door[0] - door[2], door[1] - door[3]), (door[0] + door[2], door[1] + door[3]), 0.1, _DOOR)
    hiders, agents, boxes = (int(world[name]) for name in ("num_hiders", "num_agents", "num_boxes"))
    poses = world["now"]
    colors = [_HIDER if agent < hiders else _SEEKER for agent in range(agents)]
    for agent in range(agents):
        heading = world["body"][agent, TURN] - np.pi / 2
        canvas.sector(poses[agent, POSE_X], poses[agent, POSE_Y], heading, colors[agent])
    for thing in range(int(world["num_things"])):
        pose, is_box = poses[agents + thing], thing < boxes
        canvas.rectangle(pose, _BOX if is_box else _RAMP_HIGH, None if is_box else _RAMP_LOW)
        canvas.frame(pose, _EDGE, _DARK)
        if world["locked"][thing]:
            canvas.frame(pose, _LOCK_EDGE, colors[world["locker"][thing]])
    for wall in world["wall"][: world["num_walls"]]:
        shape = (wall[WALL_X], wall[WALL_Y], 0.0, 1.0, 0.0, wall[WALL_HALF_X], wall[WALL_HALF_Y])
        canvas.rectangle(shape, _OUTER_WALL if wall[WALL_TOP] > 1.0 else _INNER_WALL)
    for agent in range(agents):
        _draw_agent(canvas, world, agent, colors[agent])
    return np.clip(np.rint(canvas.pixels), 0, 255).astype(np.uint8)


def _draw_agent(canvas: _Canvas, world: np.void, agent: int, color: Any) -> None:
    poses, hiders = world["now"], int(world["num_hiders"])
    x, y = float(poses[agent, POSE_X]), float(poses[agent, POSE_Y])
    if agent >= hiders:
        for hider in np.flatnonzero(world["sees_agent"][agent, :hiders]):
            canvas.line((x, y), poses[hider, :2], 0.04, color, 0.7)
    held = int(world["held"][agent])
    if held >= 0:
        canvas.line((x, y), poses[int(world["num_agents"]) + held, :2], 0.07, _DARK)
    height = float(np.clip(world["body"][agent, Z] / _HIGH, 0.0, 1.0))
    canvas.disc(x, y, AGENT_RADIUS + 0.06 * height, (255, 255, 255))
    pale = agent >= hiders and not world["prep_ended"]
    canvas.disc(x, y, AGENT_RADIUS, color, 0.45 if pale else 1.0)
    heading = world["body"][agent, TURN] - np.pi / 2
    canvas.line((x, y), (x + AGENT_RADIUS * np.cos(heading), y + AGENT_RADIUS * np.sin(heading)), 0.05, (255, 255, 255))
