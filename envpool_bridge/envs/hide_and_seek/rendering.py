"""Pictures of a scene, rendered by MuJoCo without a window."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.locks import Locks
from envpool_bridge.envs.hide_and_seek.mujoco import mujoco
from envpool_bridge.envs.hide_and_seek.scene import Scene

SIZE = 480  # pixels of a side
_LOCKED_BY = {False: (0.3, 0.4, 0.8, 1.0), True: (0.8, 0.3, 0.3, 1.0)}  # hiders, seekers


class Renderer:
    """Renderer of one scene; locked things have the color of the team that locked them.

    The constructor opens a graphics context, which `close` releases.

    Args:
        scene: Rendered scene.
        floor_size: Side of the floor, metres.
    """

    def __init__(self, scene: Scene, floor_size: float) -> None:
        self._scene = scene
        self._colors = scene.model.geom_rgba[scene.geoms].copy()
        self._renderer: Any = mujoco.Renderer(scene.model, SIZE, SIZE)
        self._camera = mujoco.MjvCamera()
        self._camera.lookat[:] = floor_size / 2, floor_size / 2, 0.0
        self._camera.distance, self._camera.azimuth, self._camera.elevation = 1.45 * floor_size, 90.0, -60.0

    def render(self, locks: Locks) -> np.ndarray:
        """Returns [480, 480, 3] uint8."""
        scene = self._scene
        colors = self._colors.copy()
        for thing in locks.locked.nonzero()[0]:
            colors[scene.num_agents + thing] = _LOCKED_BY[bool(locks.locker[thing] >= scene.num_hiders)]
        scene.model.geom_rgba[scene.geoms] = colors
        self._renderer.update_scene(scene.data, self._camera)
        return self._renderer.render()

    def close(self) -> None:
        """Releases the graphics context; idempotent."""
        self._renderer.close()
