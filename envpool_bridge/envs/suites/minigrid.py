"""MiniGrid and BabyAI. Source: Chevalier-Boisvert et al. 2023 (arXiv:2306.13831): a 7x7 view of (object, color, state)."""

import dataclasses
from functools import partial
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import options_of, validate_at_least
from envpool_bridge.envs.suites.registry import registered_with_prefix
from envpool_bridge.errors import BadEnvOutputError, UserError

_PREFIXES = ("MiniGrid-", "BabyAI-")
# BabyAI's words that MiniGrid's own vocabulary lacks.
_BABYAI_WORDS = ("after", "behind", "front", "in", "left", "next", "on", "right", "your")
# "A and B, then C and D", each of the form "put the red ball in front of you next to the blue box in front of you".
_LONGEST_BABYAI_MISSION = 72


@dataclasses.dataclass(frozen=True)
class MinigridOptions:
    """Options of a task.

    Attributes:
        view: "partial", the 7x7 cells before the agent (the standard protocol), or "full", the whole grid.
        image: "symbols", three integers in a cell (object, color, state), or "pixels", RGB of 8x8 pixels in a cell.
        mission_words: number of words of the mission that agents read, 0 for none. None reads the longest mission whole
            if missions differ between episodes (72 words in BabyAI, whose simple levels need 5), and none if all are
            the same.
        max_steps: env steps after which an episode is truncated; None takes the task's own.
    """

    view: Literal["partial", "full"] = "partial"
    image: Literal["symbols", "pixels"] = "symbols"
    mission_words: int | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        validate_at_least(0, mission_words=self.mission_words or 0)
        validate_at_least(1, max_steps=1 if self.max_steps is None else self.max_steps)


def minigrid_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> GymnasiumSource:
    """Returns the source of a task.

    Raises:
        UserError: If the task or an option is unknown, or the package is missing.
    """
    registered = _registration(env_id)
    options = options_of(MinigridOptions, "minigrid", env_id, kwargs)
    return GymnasiumSource(partial(_make, registered, options), env_id, strict=strict)


def _registration(env_id: str) -> Registration:
    validate_installed("minigrid", "minigrid")
    import minigrid  # noqa: F401  registers the ids

    return registered_with_prefix(env_id, "minigrid", _PREFIXES)


def _make(registered: Registration, options: MinigridOptions, render_mode: str | None = None) -> gymnasium.Env:
    from minigrid.wrappers import FullyObsWrapper, RGBImgObsWrapper, RGBImgPartialObsWrapper

    given = {} if options.max_steps is None else {"max_steps": options.max_steps}
    try:
        env = gymnasium.make(registered, disable_env_checker=True, render_mode=render_mode, **given)
    except gymnasium.error.DependencyNotInstalled as error:  # the WFC tasks
        raise UserError(f"{registered.id}: {error}") from error
    if options.image == "pixels":
        env = RGBImgPartialObsWrapper(env) if options.view == "partial" else RGBImgObsWrapper(env)
    elif options.view == "full":
        env = FullyObsWrapper(env)
    return MinigridObservation(env, options)


class MinigridObservation(gymnasium.ObservationWrapper):
    """Observations with symbols as integers of few values instead of brightness, and words as numbers.

    "image" is [W, H, 3], a MultiDiscrete of symbols or a Box of pixels, the agent's column first as in MiniGrid.
    "direction" is one of 4. "mission" is [mission_words], the number of each word in MiniGrid's and BabyAI's
    vocabularies, padded with 0.

    Args:
        env: made by `gymnasium.make`, wrapped for the image of the options.
        options: Options of the task.
    """

    def __init__(self, env: gymnasium.Env, options: MinigridOptions) -> None:
        super().__init__(env)
        inner = env.observation_space
        assert isinstance(inner, spaces.Dict)
        image = inner["image"]
        assert image.shape is not None
        seen: dict[str, spaces.Space] = {"image": image, "direction": spaces.Discrete(4)}
        if options.image == "symbols":
            seen["image"] = spaces.MultiDiscrete(np.broadcast_to(_num_symbols(), image.shape).copy(), dtype=np.uint8)
        wanted = options.mission_words
        self._mission_words = _longest_mission(inner["mission"]) if wanted is None else wanted
        self._mission: tuple[str, np.ndarray] = ("", np.zeros(self._mission_words, np.int64))
        self._numbers: dict[str, int] = {}
        if self._mission_words:
            self._numbers = _word_numbers()
            seen["mission"] = spaces.MultiDiscrete([1 + len(self._numbers)] * self._mission_words)
        self.observation_space = spaces.Dict(seen)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Returns the items of the space."""
        seen = {"image": observation["image"], "direction": observation["direction"]}
        if self._mission_words:
            if self._mission[0] != observation["mission"]:
                self._mission = (observation["mission"], self._encoded(observation["mission"]))
            seen["mission"] = self._mission[1]
        return seen

    def _encoded(self, mission: str) -> np.ndarray:
        words = _words(mission)
        if len(words) > self._mission_words:
            raise UserError(f"the mission {mission!r} has {len(words)} words: set mission_words to at least that many")
        unknown = [word for word in words if word not in self._numbers]
        if unknown:
            raise BadEnvOutputError(f"the mission {mission!r} has words that MiniGrid's vocabulary lacks: {unknown}")
        numbers = np.zeros(self._mission_words, np.int64)
        numbers[: len(words)] = [self._numbers[word] for word in words]
        return numbers


def _num_symbols() -> np.ndarray:
    """Returns the numbers of objects, colors and states, [3]; the agent's state, in a full view, is its direction."""
    from minigrid.core.constants import COLOR_TO_IDX, DIR_TO_VEC, OBJECT_TO_IDX, STATE_TO_IDX

    return np.array([len(OBJECT_TO_IDX), len(COLOR_TO_IDX), max(len(STATE_TO_IDX), len(DIR_TO_VEC))])


def _word_numbers() -> dict[str, int]:
    """Returns the number of each word of missions; 0 means no word."""
    from minigrid.wrappers import DictObservationSpaceWrapper

    words = [*DictObservationSpaceWrapper.get_minigrid_words(), *_BABYAI_WORDS]
    return {word: 1 + number for number, word in enumerate(dict.fromkeys(words))}


def _words(mission: str) -> list[str]:
    return mission.replace(",", " , ").split()


def _longest_mission(space: spaces.Space) -> int:
    """Returns the number of words of the longest mission; 0 if all missions are the same."""
    from minigrid.core.mission import MissionSpace

    if not isinstance(space, MissionSpace):
        raise UserError(f"expected MiniGrid's MissionSpace, got {space}: set mission_words")
    if type(space) is not MissionSpace:  # BabyAI's, which does not describe its missions
        return _LONGEST_BABYAI_MISSION
    if not space.ordered_placeholders:
        return 0
    longest = [max(choices, key=lambda choice: len(_words(choice))) for choices in space.ordered_placeholders]
    return len(_words(space.mission_func(*longest)))
