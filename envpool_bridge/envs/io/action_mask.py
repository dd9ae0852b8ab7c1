"""Wrapper that moves action masks from an environment's infos into its observation."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import MASK, items_of_observation, items_of_space
from envpool_bridge.envs.io.validation import describe
from envpool_bridge.errors import UserError


class MaskFromInfo(gymnasium.Wrapper):
    """Moves `info["action_mask"]` into the observation.

    The observation becomes {"action_mask": [A] int8, "observation": the original}; a Dict keeps its items and gains
    one. For a Discrete space, A is the number of actions, and the environment returns an array [A] with every reset and
    step. For a MultiDiscrete space it returns a tuple of such arrays, one for each choice in the form of
    `MultiDiscrete.sample(mask)`, which are joined. 1 or True marks a legal value.

    Args:
        env: environment with discrete actions.

    Raises:
        UserError: actions of another kind, or observations that have an item of the mask's name.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._sizes = _num_values(env)
        self._is_one_choice = isinstance(env.action_space, spaces.Discrete)
        items = items_of_space(env.observation_space)
        if MASK in items:
            raise UserError(f"{_name(env)}: observations have an item {MASK!r} of their own: set mask_from_info false")
        self.observation_space = spaces.Dict({**items, MASK: spaces.MultiBinary(sum(self._sizes))})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the first observation of an episode, with its mask. Raises ValueError for a missing or invalid mask."""
        return self._moved(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        """Steps the environment and adds the mask. Raises ValueError for a missing or invalid mask."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._moved(observation, info)
        return observation, reward, terminated, truncated, info

    def _moved(self, observation: Any, info: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        # An ordinary exception: the caller adds the environment's name, the row and the step.
        if MASK not in info:
            raise ValueError(f"expected info[{MASK!r}] after every reset and step, got infos {sorted(map(str, info))}")
        given = info[MASK]
        if self._is_one_choice:
            mask = read_mask(given, self._sizes[0], f"info[{MASK!r}]")
        elif isinstance(given, tuple | list) and len(given) == len(self._sizes):
            mask = np.concatenate(
                [
                    read_mask(part, size, f"info[{MASK!r}][{place}]")
                    for place, (part, size) in enumerate(zip(given, self._sizes, strict=True))
                ]
            )
        else:
            expected = f"a tuple of {len(self._sizes)} arrays, one for each choice"
            raise ValueError(f"expected info[{MASK!r}] to be {expected}, got {describe(given)}")
        others = {name: value for name, value in info.items() if name != MASK}
        return {**items_of_observation(observation), MASK: mask}, others


def read_mask(given: Any, size: int, name: str) -> np.ndarray:
    """Returns the mask of one choice, [size] int8. Raises ValueError unless it is an array of that many zeros and ones."""
    mask = np.asarray(given)
    if mask.shape != (size,) or mask.dtype.kind not in "biu" or not ((mask == 0) | (mask == 1)).all():
        shown = " ".join(str(mask).split())[:80]
        raise ValueError(
            f"expected {name} to be {size} zeros and ones (bools or integers), got {describe(mask)}: {shown}"
        )
    return mask.astype(np.int8)


def _num_values(env: gymnasium.Env) -> list[int]:
    """Returns the number of values of each choice."""
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return [int(size) for size in space.nvec]
    raise UserError(
        f"{_name(env)}: mask_from_info needs Discrete actions, or MultiDiscrete ones of one axis, got {space}"
    )


def _name(env: gymnasium.Env) -> str:
    return type(env.unwrapped).__name__ if env.spec is None else env.spec.id
