"""What makes a game of the emulator an episode of the field's protocol, a wrapper each."""

from typing import Any

import gymnasium
import numpy as np

NOOP = 0
_FRAMES_TO_SETTLE = 4


class SavedStart(gymnasium.Wrapper):
    """Begins every episode with the state that the emulator was in when the game was first switched on.

    An emulator that is given a seed loads its game anew, which takes as long as 200 env steps; restoring takes about one.
    The seed then only decides what is drawn in the episode: the no-ops at its start, and sticky actions. The screen is none of
    the start's until a frame has been played, so an episode must begin with at least one no-op.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        """Of an `AtariEnv` without sticky actions of its own."""
        super().__init__(env)
        self._ale: Any = env.unwrapped.ale  # pyright: ignore[reportAttributeAccessIssue]
        self._observation: Any = None
        self._start: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The start, whatever was played before; the observation is the first one's."""
        if self._start is None:
            self._observation, _ = self.env.reset(seed=0, options=options)
            self._start = self._ale.cloneState(include_rng=True)
            self._overwrite()
        self._overwrite()
        if seed is not None:
            self.unwrapped.np_random = np.random.default_rng(seed)
        return self._observation, {
            "lives": self._ale.lives(),
            "episode_frame_number": self._ale.getEpisodeFrameNumber(),
            "frame_number": self._ale.getFrameNumber(),
        }

    def _overwrite(self) -> None:
        """Restores the start.

        Some games keep what a state does not hold, pixels above all: playing the same frames overwrites what was there before.
        """
        self._ale.restoreState(self._start)
        for _ in range(_FRAMES_TO_SETTLE):
            self._ale.act(NOOP)
        self._ale.restoreState(self._start)


class StickyActions(gymnasium.Wrapper):
    """Repeats the action before with some probability, at each frame. Source: Machado et al. 2018, section 5.2.

    The emulator can do this too, but draws from a generator that it only seeds when it loads the game.
    """

    def __init__(self, env: gymnasium.Env, probability: float) -> None:
        """Of an environment whose steps are frames."""
        super().__init__(env)
        self._probability = probability
        self._action: Any = NOOP

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The action before the first is a no-op."""
        self._action = NOOP
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A frame with this action, or with the one before."""
        if self.unwrapped.np_random.random() >= self._probability:
            self._action = action
        return self.env.step(self._action)


class EpisodeIsALife(gymnasium.Wrapper):
    """Ends an episode with each life that is lost; the next one goes on in the same game.

    The reset after a lost life plays one no-op, as in the field's implementations of Mnih et al. 2015 ("EpisodicLife"): its
    reward is nobody's. A reset in the middle of a life, or after the game is over, begins a new game. Since an episode now
    depends on the lives before it, its seed and its actions do not determine it.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        """Of a game whose infos have "lives"."""
        super().__init__(env)
        self._lives = 0
        self._in_game = False  # an episode has ended by a lost life, and the game goes on

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """First observation of the next life, or of a new game."""
        goes_on = self._in_game
        self._in_game = False
        observation, info = None, {}
        if goes_on:
            observation, _, terminated, truncated, info = self.env.step(NOOP)
            goes_on = not (terminated or truncated)
        if not goes_on:
            observation, info = self.env.reset(seed=seed, options=options)
        self._lives = info["lives"]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step that also terminates when a life is lost."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = info["lives"]
        # Some games show no lives for some frames before they are over: those frames belong to the last life.
        lost = 0 < lives < self._lives
        self._lives = lives
        self._in_game = lost and not (terminated or truncated)
        return observation, reward, bool(terminated or lost), truncated, info


class SignReward(gymnasium.RewardWrapper):
    """Rewards reduced to -1, 0 or 1. Source: Mnih et al. 2015, "Training details"."""

    def reward(self, reward: Any) -> float:
        """The sign."""
        return float(np.sign(reward))
