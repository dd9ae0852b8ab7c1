"""One episode, with the effects of a step in the order of the original."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.episode_stats import EpisodeStats
from envpool_bridge.envs.hide_and_seek.game import Base, Game
from envpool_bridge.envs.hide_and_seek.geometry import distance_to_cuboids
from envpool_bridge.envs.hide_and_seek.grips import Grips
from envpool_bridge.envs.hide_and_seek.layout import Layout
from envpool_bridge.envs.hide_and_seek.locks import Locks
from envpool_bridge.envs.hide_and_seek.observations import Observer
from envpool_bridge.envs.hide_and_seek.rewards import Rewards
from envpool_bridge.envs.hide_and_seek.scene import MAX_CONTROL, make_scene
from envpool_bridge.envs.hide_and_seek.vision import Vision

_CONTROL = np.linspace(-MAX_CONTROL, MAX_CONTROL, 11)
_STILL = np.array([5, 5, 5, 0, 0])
_WALL_FRICTION = {True: 0.01, False: 1.0}  # of the quadrant game and of others


class Episode:
    """An episode from a layout to the horizon.

    Args:
        game: Rules.
        layout: Positions at the start.
        rng: Generator of the episode.

    Attributes:
        scene: Physics of the episode.
        grips: Held things.
        locks: Locked things.
        visibility: Present visibility.
        num_steps: Number of steps played.
        over: Whether it is truncated.
        discarded: Whether its physics diverged.
    """

    def __init__(self, game: Game, layout: Layout, rng: np.random.Generator) -> None:
        self.scene = make_scene(layout, game.floor_size, _WALL_FRICTION[isinstance(game, Base)])
        self.grips, self.locks = Grips(self.scene), Locks(self.scene, game.locks_ramps, rng)
        self.num_steps, self.over, self.discarded = 0, False, False
        self._game = game
        self._vision = Vision(self.scene, game.lidar_rays)
        self._rewards = Rewards(game, layout.num_hiders, layout.num_agents)
        self._observer = Observer(game, self.scene, self.locks)
        self._stats = EpisodeStats(self.scene, layout, game)
        self.visibility = self._vision.compute()

    @property
    def progress(self) -> float:
        """Progress of the preparation phase, in [0, 1]; 1 from one step after its end, as in the original."""
        return min(1.0, self.num_steps / (self._game.prep_steps + 1e-5))

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Returns the rewards, [A], of actions, [A, 5]."""
        prepares = self.num_steps < self._game.prep_steps
        if prepares:
            actions[self.scene.num_hiders :] = _STILL
        self._use_hands(actions[:, 3] == 1, actions[:, 4] == 1)
        self.scene.motors[:] = _CONTROL[actions[:, :3]]
        finite = self.scene.advance()
        self.num_steps += 1
        self.over = self.num_steps >= self._game.horizon
        if not finite:
            self.over = self.discarded = True
            return np.zeros(self.scene.num_agents)
        self.visibility = self._vision.compute()
        return self._rewarded(prepares)

    def observe(self) -> dict[str, np.ndarray]:
        """Returns the observations, [A, ...] a leaf."""
        return self._observer.observe(self.visibility, self.progress)

    def state(self) -> np.ndarray:
        """Returns the global state, [S] float32."""
        return self._observer.state(self.progress)

    def stats(self) -> dict[str, float]:
        """Returns the statistics of the episode, after its end."""
        return {**self._stats.as_dict(self.locks.locked), "discard_episode": float(self.discarded)}

    def _use_hands(self, pulls: np.ndarray, presses: np.ndarray) -> None:
        scene, agents = self.scene, self.scene.num_agents
        if not scene.num_things:
            return
        centers = scene.centers()
        distance = distance_to_cuboids(centers[:agents], centers[agents:], scene.position[agents:, 3], scene.half_sizes)
        self.grips.update(pulls, self.visibility.things, distance)
        self.locks.update(presses, self.visibility.things, distance)

    def _rewarded(self, prepares: bool) -> np.ndarray:
        sees = self.visibility.agents
        rewards = np.zeros(self.scene.num_agents)
        if not prepares:
            rewards = self._rewards.compute(sees, self.scene.centers())
        self._stats.add(rewards, sees, not prepares)
        if not self._stats.preparation_ended and self.progress >= 1.0:
            self._stats.end_preparation(self.locks.locked)
        return rewards
