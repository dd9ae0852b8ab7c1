"""Locks: locked things are immovable until the team that locked them unlocks them."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import REACH
from envpool_bridge.envs.hide_and_seek.scene import Scene


class Locks:
    """Locks of a scene's things.

    One bit of an agent's action locks all visible things within reach; without it, the agent unlocks them. Only the
    team that locked a thing last can unlock it. While an agent of that team is near, sees it and does not press, no
    agent can lock it. Things that were never locked count as the hiders'.

    Args:
        scene: Scene, whose things start unlocked.
        locks_ramps: Whether ramps can be locked.
        rng: Generator that chooses the locking agent if there are several.

    Attributes:
        locked: [M] bool.
        locker: [M] agents that locked last.
    """

    def __init__(self, scene: Scene, locks_ramps: bool, rng: np.random.Generator) -> None:
        self._scene, self._rng = scene, rng
        self._can_lock = np.ones(scene.num_things, bool)
        if not locks_ramps:
            self._can_lock[scene.num_boxes :] = False
        self._agents = np.arange(scene.num_agents)[:, None]
        self._is_seeker = np.arange(scene.num_agents) >= scene.num_hiders
        self._limited = scene.model.jnt_limited.reshape(-1, 4)[scene.num_agents :]
        self._range = scene.model.jnt_range.reshape(-1, 4, 2)[scene.num_agents :]
        self.locked = np.zeros(scene.num_things, bool)
        self.locker = np.zeros(scene.num_things, int)

    def update(self, presses: np.ndarray, seen: np.ndarray, distance: np.ndarray) -> None:
        """Locks and unlocks.

        Args:
            presses: [A] bool.
            seen: [A, M] bool, visibility in the agents' last observation.
            distance: [A, M] metres.
        """
        if not (presses.any() or self.locked.any()):
            return
        near = seen & (distance <= REACH) & self._can_lock
        want = near & presses[:, None]
        veto = near & ~presses[:, None] & (self._is_seeker[:, None] == self._is_seeker[self.locker])
        unlock = veto.any(axis=0)
        lock = want.any(axis=0) & ~unlock
        new, freed = lock & ~self.locked, self.locked & unlock
        self.locked = (self.locked & ~unlock) | lock
        if new.any():
            for thing in new.nonzero()[0]:
                self.locker[thing] = self._rng.choice(want[:, thing].nonzero()[0])
            # Joints limited to their present position resist any force, and contacts are unchanged.
            self._range[new] = self._scene.position[self._scene.num_agents :][new][..., None]
            self._limited[new] = 1
        if freed.any():
            self._limited[freed] = 0

    def seen_by_agents(self) -> np.ndarray:
        """Returns whether a thing is locked by the agent itself (last), by its team, by any agent, [A, M, 3] bool."""
        seen = np.empty((len(self._is_seeker), len(self.locked), 3), bool)
        seen[..., 0] = self._agents == self.locker
        seen[..., 1] = self._is_seeker[:, None] == self._is_seeker[self.locker]
        seen[..., 2] = True
        return seen & self.locked[:, None]
