"""Observations: the whole state, and masks of the visible part, which networks apply."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import Game
from envpool_bridge.envs.hide_and_seek.locks import Locks
from envpool_bridge.envs.hide_and_seek.scene import Scene
from envpool_bridge.envs.hide_and_seek.spaces import AGENT_FEATURES, AGENTS, BOXES, LIDAR, MASK, POSE, RAMPS, SELF
from envpool_bridge.envs.hide_and_seek.vision import Visibility


class Observer:
    """Writer of the observations of a scene's agents, for one episode."""

    def __init__(self, game: Game, scene: Scene, locks: Locks) -> None:
        self._game, self._scene, self._locks = game, scene, locks
        agents = np.arange(scene.num_agents)
        # An agent lists the others backwards from itself.
        self._others = (agents[:, None] - np.arange(1, scene.num_agents)) % scene.num_agents
        self._agents_by_row = agents[:, None]
        self._is_hider = (agents < scene.num_hiders).astype(np.float32)

    def observe(self, visibility: Visibility, progress: float) -> dict[str, np.ndarray]:
        """Returns the observations, [A, ...] a leaf of `observation_space`.

        Args:
            visibility: Present visibility.
            progress: Progress of the preparation phase, in [0, 1].
        """
        game, scene, boxes = self._game, self._scene, self._scene.num_boxes
        features, poses = self._agent_features(progress), self._poses()
        shown = {SELF: features, LIDAR: visibility.lidar.astype(np.float32)}
        locks = self._locks.seen_by_agents()
        if game.seats > 1:
            rows = self._agents_by_row, self._others
            self._show(shown, AGENTS, game.seats - 1, [features[self._others]], visibility.agents[rows])
        if game.boxes[1]:
            sizes = [scene.box_sizes] if game.observes_sizes else []
            parts = [poses[:boxes], *sizes, locks[:, :boxes]]
            self._show(shown, BOXES, game.boxes[1], parts, visibility.things[:, :boxes])
        if game.ramps:
            pad = [np.zeros((game.ramps, 3))] if game.observes_sizes else []
            parts = [poses[boxes:], *pad, *([locks[:, boxes:]] if game.locks_ramps else [])]
            self._show(shown, RAMPS, game.ramps, parts, visibility.things[:, boxes:])
        return shown

    def state(self, progress: float) -> np.ndarray:
        """Returns the global state, [S] float32: progress, agents (10 each), boxes (pose 9, size 3, 2 locks), ramps (9, 2).

        The locks are: locked, locked by seekers. Absent agents and boxes are zeros.
        """
        game, scene, boxes = self._game, self._scene, self._scene.num_boxes
        locked = self._locks.locked
        locks = np.stack([locked, locked & (self._locks.locker >= scene.num_hiders)], axis=1)
        poses = self._poses()
        of_boxes = np.concatenate([poses[:boxes], scene.box_sizes, locks[:boxes]], axis=1)
        of_ramps = np.concatenate([poses[boxes:], locks[boxes:]], axis=1)
        parts = [
            np.array([progress]),
            _padded(self._agent_features(progress), game.seats),
            _padded(of_boxes, game.boxes[1]),
            of_ramps.reshape(-1),
        ]
        return np.concatenate(parts, dtype=np.float32)

    def _agent_features(self, progress: float) -> np.ndarray:
        """Returns [A, 10] float32."""
        scene = self._scene
        features = np.empty((scene.num_agents, AGENT_FEATURES), np.float32)
        features[:, :4] = scene.position[: scene.num_agents]
        features[:, 4:8] = scene.velocity[: scene.num_agents]
        features[:, 8] = self._is_hider
        features[:, 9] = progress
        return features

    def _poses(self) -> np.ndarray:
        """Returns the poses of things, [M, 9]."""
        scene, agents = self._scene, self._scene.num_agents
        poses = np.empty((scene.num_things, POSE))
        poses[:, :3] = scene.position[agents:, :3]
        poses[:, 3] = np.cos(scene.position[agents:, 3])
        poses[:, 4] = np.sin(scene.position[agents:, 3])
        poses[:, 5:] = scene.velocity[agents:]
        return poses

    def _show(
        self, shown: dict[str, np.ndarray], name: str, most: int, parts: list[np.ndarray], visible: np.ndarray
    ) -> None:
        """Joins [A, K, F] or [K, F] features and masks [A, K], padded with zeros to `most`."""
        agents, count = visible.shape
        features = np.zeros((agents, most, sum(part.shape[-1] for part in parts)), np.float32)
        mask = np.zeros((agents, most), np.int8)
        at = 0
        for part in parts:
            features[:, :count, at : at + part.shape[-1]] = part
            at += part.shape[-1]
        mask[:, :count] = visible
        shown[name], shown[name + MASK] = features, mask


def _padded(rows: np.ndarray, most: int) -> np.ndarray:
    """Returns [K, F] as [most * F], zeros at the end."""
    flat = np.zeros(most * rows.shape[1])
    flat[: rows.size] = rows.reshape(-1)
    return flat
