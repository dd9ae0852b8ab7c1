"""Wrappers that turn a game of the emulator into an episode of the standard protocol."""

from typing import Any

import gymnasium
import numpy as np

NOOP = 0
_FRAMES_TO_SETTLE = 4


class SavedStart(gymnasium.Wrapper):
    """Starts every episode from the emulator's state after the game was first switched on.

    An emulator that receives a seed loads its game again, which takes as long as 200 env steps; restoring takes about
    one. The seed then only determines the draws in the episode: the no-ops at its start, and sticky actions. The screen
    is valid only after one frame, so an episode must start with at least one no-op.

    Args:
        env: an `AtariEnv` without sticky actions of its own.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._ale: Any = env.unwrapped.ale  # pyright: ignore[reportAttributeAccessIssue]
        self._observation: Any = None
        self._start: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Restores the start and returns its observation."""
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

        Some games keep data outside the state, above all pixels. Playing the same frames overwrites it.
        """
        self._ale.restoreState(self._start)
        for _ in range(_FRAMES_TO_SETTLE):
            self._ale.act(NOOP)
        self._ale.restoreState(self._start)


class StickyActions(gymnasium.Wrapper):
    """Repeats the previous action with some probability, at each frame. Source: Machado et al. 2018, section 5.2.

    The emulator has this option too, but seeds its generator only when it loads the game.

    Args:
        env: environment whose steps are frames.
        probability: Probability of a repetition.
    """

    def __init__(self, env: gymnasium.Env, probability: float) -> None:
        super().__init__(env)
        self._probability = probability
        self._action: Any = NOOP

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Sets the action before the first to a no-op."""
        self._action = NOOP
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Plays a frame with this action, or with the previous one."""
        if self.unwrapped.np_random.random() >= self._probability:
            self._action = action
        return self.env.step(self._action)


class EpisodeIsALife(gymnasium.Wrapper):
    """Ends an episode with each lost life; the next one continues the same game.

    The reset after a lost life plays one no-op, as in the usual implementations of Mnih et al. 2015 ("EpisodicLife").
    The reward of that no-op is discarded. A reset in the middle of a life, or after the end of the game, starts a new
    game. An episode depends on the lives before it, so its seed and its actions do not determine it.

    Args:
        env: game whose infos have "lives".
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._lives = 0
        self._in_game = False  # an episode has ended by a lost life, and the game continues

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns the first observation of the next life, or of a new game."""
        continues = self._in_game
        self._in_game = False
        observation, info = None, {}
        if continues:
            observation, _, terminated, truncated, info = self.env.step(NOOP)
            continues = not (terminated or truncated)
        if not continues:
            observation, info = self.env.reset(seed=seed, options=options)
        self._lives = info["lives"]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Steps the game; also terminates when a life is lost."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = info["lives"]
        # Some games report no lives for some frames before their end: those frames belong to the last life.
        lost = 0 < lives < self._lives
        self._lives = lives
        self._in_game = lost and not (terminated or truncated)
        return observation, reward, bool(terminated or lost), truncated, info


class SignReward(gymnasium.RewardWrapper):
    """Reduces rewards to -1, 0 or 1. Source: Mnih et al. 2015, "Training details"."""

    def reward(self, reward: Any) -> float:
        return float(np.sign(reward))
