"""Hide-and-seek as a parallel multi-agent environment."""

from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.episode import Episode
from envpool_bridge.envs.hide_and_seek.game import Game
from envpool_bridge.envs.hide_and_seek.layout import Layout, draw_layout
from envpool_bridge.envs.hide_and_seek.rendering import Renderer
from envpool_bridge.envs.hide_and_seek.spaces import Teams
from envpool_bridge.envs.parallel_env import ParallelReset, ParallelStep

ByAgent = dict[str, Any]


class HideAndSeek(Teams):
    """Hide-and-seek with PettingZoo's parallel API: after a preparation phase, hiders are rewarded for not being seen.

    Each agent observes a dict (see `observations`) and acts with MultiDiscrete([11, 11, 11, 2, 2]). An episode is
    truncated at the horizon and never terminates; its last infos are its `EpisodeStats`. An episode whose physics
    diverge is truncated immediately, with "discard_episode" 1 in its infos and rewards 0. All randomness of an episode
    follows from the seed of its reset.

    Args:
        game: Rules; RandomWalls() if None.
        render_mode: "rgb_array", or None.
    """

    def __init__(self, game: Game | None = None, render_mode: str | None = None) -> None:
        super().__init__(game, render_mode)
        self._rng = np.random.default_rng()
        self._episode: Episode | None = None
        self._renderer: Renderer | None = None

    @property
    def episode(self) -> Episode:
        """Present episode. Raises RuntimeError before the first reset."""
        if self._episode is None:
            raise RuntimeError("hide-and-seek: call reset() first")
        return self._episode

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        """Starts an episode.

        Args:
            seed: Seed of all randomness of the episode. None continues the generator of the previous episode.
            options: {"layout": Layout} starts with that layout instead of drawing one.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        given: Layout | None = (options or {}).get("layout")
        layout = draw_layout(self.game, self._rng) if given is None else given
        self._episode = Episode(self.game, layout, self._rng)
        self._release_renderer()
        self._begin(layout.num_hiders, layout.num_agents)
        return self._by_agent(self._episode.observe()), {name: {} for name in self.agents}

    def step(self, actions: ByAgent) -> ParallelStep:
        """Steps all agents by 0.075 s."""
        names, episode = self.agents, self.episode
        rewards = episode.step(np.array([actions[name] for name in names]))
        observations = self._by_agent(episode.observe())
        infos = episode.stats() if episode.over else {}
        result = (
            observations,
            dict(zip(names, rewards.tolist(), strict=True)),
            dict.fromkeys(names, False),
            dict.fromkeys(names, episode.over),
            {name: dict(infos) for name in names},
        )
        if episode.over:
            self.agents = []
        return result

    def state(self) -> np.ndarray:
        """Returns the global state, [S] float32."""
        return self.episode.state()

    def render(self) -> np.ndarray:
        """Returns a picture of the scene from above at an angle, [480, 480, 3] uint8.

        Raises:
            Exception: the graphics library cannot render on this machine.
        """
        if self._renderer is None:
            self._renderer = Renderer(self.episode.scene, self.game.floor_size)
        return self._renderer.render(self.episode.locks)

    def close(self) -> None:
        """Releases the renderer; idempotent."""
        self._release_renderer()

    def _release_renderer(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _by_agent(self, shown: dict[str, np.ndarray]) -> ByAgent:
        return {name: {key: rows[place] for key, rows in shown.items()} for place, name in enumerate(self.agents)}
