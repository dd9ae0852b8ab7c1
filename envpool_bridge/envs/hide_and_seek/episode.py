"""One episode: what a step does, in the order of the original."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.episode_stats import Story
from envpool_bridge.envs.hide_and_seek.game import Base, Game
from envpool_bridge.envs.hide_and_seek.geometry import distance_to_cuboids
from envpool_bridge.envs.hide_and_seek.grips import Grips
from envpool_bridge.envs.hide_and_seek.layout import Layout
from envpool_bridge.envs.hide_and_seek.locks import Locks
from envpool_bridge.envs.hide_and_seek.observations import Observer
from envpool_bridge.envs.hide_and_seek.rewards import Rewards
from envpool_bridge.envs.hide_and_seek.scene import MAX_CONTROL, make_scene
from envpool_bridge.envs.hide_and_seek.vision import Eyes

_CONTROL = np.linspace(-MAX_CONTROL, MAX_CONTROL, 11)
_STILL = np.array([5, 5, 5, 0, 0])
_WALL_FRICTION = {True: 0.01, False: 1.0}  # of the quadrant game and of others


class Episode:
    """From a layout to the horizon.

    Attributes:
        scene: its physics.
        grips: who holds what.
        locks: what is locked.
        sight: who sees what now.
        num_steps: played.
        over: whether it is truncated.
        discarded: whether its physics blew up.
    """

    def __init__(self, game: Game, layout: Layout, rng: np.random.Generator) -> None:
        """Before the first step."""
        self.scene = make_scene(layout, game.floor_size, _WALL_FRICTION[isinstance(game, Base)])
        self.grips, self.locks = Grips(self.scene), Locks(self.scene, game.locks_ramps, rng)
        self.num_steps, self.over, self.discarded = 0, False, False
        self._game = game
        self._eyes = Eyes(self.scene, game.lidar_rays)
        self._rewards = Rewards(game, layout.num_hiders, layout.num_agents)
        self._observer = Observer(game, self.scene, self.locks)
        self._story = Story(self.scene)
        self.sight = self._eyes.look()

    @property
    def progress(self) -> float:
        """Of the preparation phase, in [0, 1]; 1 from one step after its end, as in the original."""
        return min(1.0, self.num_steps / (self._game.prep_steps + 1e-5))

    def step(self, actions: np.ndarray) -> np.ndarray:
        """[A] rewards of [A, 5] actions."""
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
        self.sight = self._eyes.look()
        return self._rewarded(prepares)

    def observe(self) -> dict[str, np.ndarray]:
        """[A, ...] of each leaf."""
        return self._observer.observe(self.sight, self.progress)

    def state(self) -> np.ndarray:
        """[S] float32, the global state."""
        return self._observer.state(self.progress)

    def told(self) -> dict[str, float]:
        """What happened, once the episode is over."""
        return {**self._story.told(self.locks.locked), "discard_episode": float(self.discarded)}

    def _use_hands(self, pulls: np.ndarray, presses: np.ndarray) -> None:
        scene, agents = self.scene, self.scene.num_agents
        if not scene.num_things:
            return
        centres = scene.centres()
        distance = distance_to_cuboids(centres[:agents], centres[agents:], scene.position[agents:, 3], scene.half_sizes)
        self.grips.update(pulls, self.sight.things, distance)
        self.locks.update(presses, self.sight.things, distance)

    def _rewarded(self, prepares: bool) -> np.ndarray:
        sees = self.sight.agents
        rewards = np.zeros(self.scene.num_agents)
        if not prepares:
            rewards = self._rewards.of(sees, self.scene.centres())
        hiders = self.scene.num_hiders
        self._story.add(rewards, bool(sees[hiders:, :hiders].any()), not prepares)
        if not self._story.preparation_told and self.progress >= 1.0:
            self._story.end_preparation(self.locks.locked)
        return rewards
