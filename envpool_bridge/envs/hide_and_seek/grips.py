"""Hands: an agent that pulls holds the nearest thing within reach that it saw, as a rigid link that MuJoCo keeps."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.scene import Scene

REACH = 0.25  # metres from an agent's centre to the surface of a thing
NOTHING = -1


class Grips:
    """What a scene's agents hold; several may hold one thing.

    Attributes:
        held: [A] places of things, -1 for none.
    """

    def __init__(self, scene: Scene) -> None:
        """Everybody's hands are empty."""
        self._scene = scene
        self.held = np.full(scene.num_agents, NOTHING)

    def update(self, pulls: np.ndarray, seen: np.ndarray, distance: np.ndarray) -> None:
        """Takes and lets go.

        Args:
            pulls: [A] bool.
            seen: [A, M] bool, what agents saw in their last observation.
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
        """Holds the thing as it is now to the agent's body: MuJoCo's weld wants its pose as the agent sees it."""
        scene = self._scene
        centres, turns = scene.centres()[[agent, thing]], scene.position[[agent, thing], 3]
        away, cos, sin = centres[1] - centres[0], np.cos(turns[0]), np.sin(turns[0])
        half_turn = (turns[1] - turns[0]) / 2
        link = scene.model.eq_data[agent]
        link[0:3] = 0.0
        link[3:6] = cos * away[0] + sin * away[1], cos * away[1] - sin * away[0], away[2]
        link[6:10] = np.cos(half_turn), 0.0, 0.0, np.sin(half_turn)
        link[10] = 1.0
        scene.model.eq_obj2id[agent] = scene.bodies[thing]
