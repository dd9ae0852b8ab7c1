"""Atari games in the standard protocol. Source: Mnih et al. 2015; Machado et al. 2018 (arXiv:1709.06009), table 1."""

import dataclasses
from functools import partial
from typing import Any

import gymnasium

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.suites.atari_wrappers import EpisodeIsALife, SavedStart, SignReward, StickyActions
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import options_of, validate_at_least
from envpool_bridge.envs.suites.registry import register_atari, registered_with_prefix
from envpool_bridge.errors import UserError

_FRAMES_PER_SECOND = 60  # of the console; ALE declares half of them


@dataclasses.dataclass(frozen=True)
class AtariOptions:
    """Options of a game.

    Attributes:
        frame_skip: emulator frames per env step; the observation is the maximum of the last two.
        screen_size: pixels of each side.
        grayscale: one channel; False keeps three, [screen_size, screen_size, 3].
        frame_stack: number of newest frames that agents see, oldest first; 1 does not stack.
        noop_max: an episode starts with 1 to this many no-ops; 0 with none.
        terminal_on_life_loss: ends an episode with each life, and continues the same game. Only for learning:
            evaluation plays whole games.
        clip_rewards: reduces rewards to their sign. Only for learning: evaluation counts the score.
        repeat_action_probability: probability that a frame repeats the previous action ("sticky actions"): 0.25 in
            Machado et al.
        full_action_space: all 18 actions for every game.
        max_frames: emulator frames after which a game is truncated; 108,000 are half an hour.
        mode: Mode of the game; None takes its default.
        difficulty: Difficulty of the game; None takes its default.
    """

    frame_skip: int = 4
    screen_size: int = 84
    grayscale: bool = True
    frame_stack: int = 4
    noop_max: int = 30
    terminal_on_life_loss: bool = False
    clip_rewards: bool = False
    repeat_action_probability: float = 0.0
    full_action_space: bool = False
    max_frames: int = 108_000
    mode: int | None = None
    difficulty: int | None = None

    def __post_init__(self) -> None:
        validate_at_least(1, frame_skip=self.frame_skip, screen_size=self.screen_size, frame_stack=self.frame_stack)
        validate_at_least(0, noop_max=self.noop_max, max_frames=self.max_frames)
        if not 0.0 <= self.repeat_action_probability <= 1.0:
            raise UserError(
                f"option repeat_action_probability must lie in [0, 1], got {self.repeat_action_probability}"
            )
        if self.frame_stack > 1 and not self.grayscale:
            raise UserError(
                f"frame_stack {self.frame_stack} stacks grey frames: with grayscale false use frame_stack 1"
            )

    def for_evaluation(self) -> "AtariOptions":
        """Returns options for whole games and their score."""
        return dataclasses.replace(self, terminal_on_life_loss=False, clip_rewards=False)


def atari_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> GymnasiumSource:
    """Returns the source of an Atari game; agents see [frame_stack, 84, 84] uint8, each frame stored once.

    Raises:
        UserError: If the game or an option is unknown, or a package is missing.
    """
    validate_installed("ale_py", "atari")
    validate_installed("cv2", "atari")
    register_atari()
    registered_with_prefix(env_id, "atari", ("ALE/",))
    options = options_of(AtariOptions, "atari", env_id, kwargs)
    return GymnasiumSource(
        partial(_make, env_id, options),
        env_id,
        options.frame_skip,
        strict,
        frame_stack=options.frame_stack,
        evaluation_env=partial(_make, env_id, options.for_evaluation()),
    )


def _make(env_id: str, options: AtariOptions, render_mode: str | None = None) -> gymnasium.Env:
    """Makes the game, one frame in each observation: sources stack them."""
    from gymnasium.wrappers import AtariPreprocessing

    register_atari()
    env = gymnasium.make(
        env_id,
        disable_env_checker=True,
        frameskip=1,
        repeat_action_probability=0.0,
        full_action_space=options.full_action_space,
        max_num_frames_per_episode=options.max_frames,
        mode=options.mode,
        difficulty=options.difficulty,
        render_mode=render_mode,
    )
    env.metadata = {**env.metadata, "render_fps": _FRAMES_PER_SECOND}
    _require_noop(env, env_id, options)
    if options.noop_max > 0:
        env = SavedStart(env)
    if options.repeat_action_probability > 0.0:
        env = StickyActions(env, options.repeat_action_probability)
    env = AtariPreprocessing(
        env, options.noop_max, options.frame_skip, options.screen_size, grayscale_obs=options.grayscale
    )
    if options.terminal_on_life_loss:
        env = EpisodeIsALife(env)
    return SignReward(env) if options.clip_rewards else env


def _require_noop(env: gymnasium.Env, env_id: str, options: AtariOptions) -> None:
    meanings: list[str] = env.unwrapped.get_action_meanings()  # pyright: ignore[reportAttributeAccessIssue]
    if meanings[0] != "NOOP" and (options.noop_max > 0 or options.terminal_on_life_loss):
        env.close()
        raise UserError(
            f"{env_id}: its smallest set of actions has no no-op for the start of an episode: set full_action_space "
            f"true, or noop_max 0 and terminal_on_life_loss false"
        )
