"""Hands: a pulling agent holds the nearest visible thing within reach by a rigid MuJoCo link."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import REACH
from envpool_bridge.envs.hide_and_seek.scene import Scene

NOTHING = -1


class Grips:
    """Things held by a scene's agents; several agents may hold one thing.

    Args:
        scene: Scene, whose agents start with empty hands.

    Attributes:
        held: [A] indices of things, -1 for none.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.held = np.full(scene.num_agents, NOTHING)

    def update(self, pulls: np.ndarray, seen: np.ndarray, distance: np.ndarray) -> None:
        """Grips and releases.

        Args:
            pulls: [A] bool.
            seen: [A, M] bool, visibility in the agents' last observation.
            distance: [A, M] metres.
        """
        scene = self._scene
        reach = np.where(pulls[:, None] & seen & (distance <= REACH), distance, np.inf)
        nearest = reach.argmin(axis=1)
        holds = np.isfinite(reach[np.arange(len(reach)), nearest])
        target = np.where(holds, nearest, NOTHING)
        scene.data.eq_active[:] = holds
        for agent in (holds & (target != self.held)).nonzero()[0]:
            self._link(int(agent), scene.num_agents + int(target[agent]))
        self.held = target

    def _link(self, agent: int, thing: int) -> None:
        """Links the thing in its present pose to the agent's body: MuJoCo's weld needs the pose relative to the agent."""
        scene = self._scene
        centers, turns = scene.centers()[[agent, thing]], scene.position[[agent, thing], 3]
        away, cos, sin = centers[1] - centers[0], np.cos(turns[0]), np.sin(turns[0])
        half_turn = (turns[1] - turns[0]) / 2
        link = scene.model.eq_data[agent]
        link[0:3] = 0.0
        link[3:6] = cos * away[0] + sin * away[1], cos * away[1] - sin * away[0], away[2]
        link[6:10] = np.cos(half_turn), 0.0, 0.0, np.sin(half_turn)
        link[10] = 1.0
        scene.model.eq_obj2id[agent] = scene.bodies[thing]
