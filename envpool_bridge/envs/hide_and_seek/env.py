"""Hide-and-seek as a parallel environment of several agents."""

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.hide_and_seek.episode import Episode
from envpool_bridge.envs.hide_and_seek.game import Game, RandomWalls
from envpool_bridge.envs.hide_and_seek.layout import Layout, draw_layout
from envpool_bridge.envs.hide_and_seek.observations import observation_space, state_space
from envpool_bridge.envs.hide_and_seek.rendering import Painter
from envpool_bridge.envs.hide_and_seek.scene import SUBSTEP_SECONDS, SUBSTEPS

FORCES = 11  # evenly spaced from -0.9 to 0.9; 5 is none
ACTION_SIZES = (FORCES, FORCES, FORCES, 2, 2)  # force along x, along y, torque; pull; lock
ByAgent = dict[str, Any]


class HideAndSeek:
    """Hiders are rewarded for not being seen, after a while in which seekers must wait. Keeps PettingZoo's parallel API.

    Each agent observes a dict (see `observations`) and acts with MultiDiscrete([11, 11, 11, 2, 2]). An episode is truncated at
    the horizon and never terminates; its last infos tell its `Story`. One whose physics blow up is truncated at once, with
    "discard_episode" 1 in its infos and rewards 0. What is random in an episode follows from the seed of its reset.

    Attributes:
        possible_agents: "hider_0", ..., "seeker_0", ...
        agents: those of the episode.
        game: the rules.
        state_space: of the global state.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "hide_and_seek",
        "render_modes": ["rgb_array"],
        "render_fps": 1 / (SUBSTEPS * SUBSTEP_SECONDS),
    }

    def __init__(self, game: Game | None = None, render_mode: str | None = None) -> None:
        """Before the first episode nobody is there; without rules, RandomWalls()."""
        self.game = RandomWalls() if game is None else game
        self.render_mode = render_mode
        hiders = [f"hider_{number}" for number in range(self.game.hiders)]
        self._hiders, self._seekers = hiders, [f"seeker_{number}" for number in range(self.game.seekers)]
        self.possible_agents: list[str] = hiders + self._seekers
        self.agents: list[str] = []
        self.state_space = state_space(self.game)
        self._observation_space = observation_space(self.game)
        self._action_space = spaces.MultiDiscrete(list(ACTION_SIZES))
        self._rng = np.random.default_rng()
        self._episode: Episode | None = None
        self._painter: Painter | None = None

    @property
    def unwrapped(self) -> "HideAndSeek":
        """Itself, as PettingZoo's tools ask."""
        return self

    @property
    def episode(self) -> Episode:
        """The one that is played. Raises RuntimeError before the first reset."""
        if self._episode is None:
            raise RuntimeError("hide-and-seek: expected reset() before anything else")
        return self._episode

    def observation_space(self, agent: str) -> spaces.Space:
        """The same of all agents."""
        del agent
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space:
        """The same of all agents."""
        del agent
        return self._action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ByAgent, dict[str, ByAgent]]:
        """Begins an episode.

        Args:
            seed: of all that is random in it; None goes on from the episode before.
            options: {"layout": Layout} begins with that one instead of drawing it.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        given: Layout | None = (options or {}).get("layout")
        layout = draw_layout(self.game, self._rng) if given is None else given
        self._episode = Episode(self.game, layout, self._rng)
        self._release_painter()
        seekers = layout.num_agents - layout.num_hiders
        self.agents = self._hiders[: layout.num_hiders] + self._seekers[:seekers]
        return self._by_agent(self._episode.observe()), {name: {} for name in self.agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, dict[str, ByAgent]]:
        """One step of 0.075 s of all agents."""
        names, episode = self.agents, self.episode
        rewards = episode.step(np.array([actions[name] for name in names]))
        observations = self._by_agent(episode.observe())
        infos = episode.told() if episode.over else {}
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
        """[S] float32, the global state."""
        return self.episode.state()

    def render(self) -> np.ndarray:
        """[480, 480, 3] uint8, seen from above at a slant.

        Raises:
            Exception: of the graphics library, where this machine cannot draw.
        """
        if self._painter is None:
            self._painter = Painter(self.episode.scene, self.game.floor_size)
        return self._painter.paint(self.episode.locks)

    def close(self) -> None:
        """Gives back what drawing holds; idempotent."""
        self._release_painter()

    def _release_painter(self) -> None:
        if self._painter is not None:
            self._painter.close()
            self._painter = None

    def _by_agent(self, shown: dict[str, np.ndarray]) -> ByAgent:
        return {name: {key: rows[place] for key, rows in shown.items()} for place, name in enumerate(self.agents)}
