"""Environments of the EnvPool package (`pip install envpool`): C++ threads step all rows. Unrelated to this package's `EnvPool`.

Its Python side seeds a pool when it is made, never at a reset. A reset with seeds therefore makes a new pool.
"""

import dataclasses
import warnings
from functools import partial
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import did_you_mean, validate_at_least
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.tree import map_leaves, take, write

_SEEDS = 2**31  # a seed is a C int
_OURS = ("num_envs", "batch_size", "seed", "env_seed", "gym_reset_return_info", "max_num_players")
_PIXELS = "from_pixels"  # an argument of `envpool.make` that is not among the options of a task


@dataclasses.dataclass(frozen=True)
class NativeEnvPoolSource(VectorSource):
    """Rows of one pool of the EnvPool package; made by `native_envpool_source`."""

    def with_action_repeat(self, repeat: int) -> Self:
        """Returns rows of the same task, whose env steps are up to `repeat` steps of the pool."""
        make = partial(self.make_vector_env, repeat=repeat)  # pyright: ignore[reportCallIssue]
        return dataclasses.replace(self, make_vector_env=make, action_repeat=self.action_repeat * repeat)


def native_envpool_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> NativeEnvPoolSource:
    """Returns the source of an EnvPool task, with EnvPool's own defaults.

    Args:
        env_id: EnvPool's name of the task, e.g. "Pong-v5".
        kwargs: arguments of `envpool.make`, such as "num_threads"; and "frame_stack", by which this package stacks
            frames, each stored once (EnvPool's own "stack_num" is then 1). Pixels of MuJoCo are stacked by EnvPool: [3 N, H, W].
        strict: Whether output must be as declared, as in VectorSource.

    Raises:
        UserError: unknown task or arguments, or the package or the library that draws is missing.
    """
    validate_installed("envpool", "envpool")
    envpool = _import_envpool(bool(kwargs.get(_PIXELS)))
    known = envpool.list_all_envs()
    if env_id not in known:
        raise UserError(f"unknown id {env_id!r} of suite 'envpool'{did_you_mean(env_id, known, before='; ')}")
    ours = sorted(set(kwargs) & set(_OURS))
    if ours:
        raise UserError(
            f"{env_id} of suite 'envpool': {', '.join(ours)} cannot be set: they follow from the number of rows and their seeds"
        )
    validate_at_least(1, frame_stack=kwargs.get("frame_stack", 1))
    arguments = dict(kwargs)
    # Convolutions read the colors of several frames as channels of one image, which only EnvPool makes of them.
    frame_stack = 1 if kwargs.get(_PIXELS) else arguments.pop("frame_stack", 1)
    config = _config(env_id, arguments)
    if frame_stack > 1 and "stack_num" in config:
        arguments["stack_num"] = 1
    # Only tasks with stacked frames count emulator frames; "frame_skip" of a physics engine is not one.
    action_repeat = int(config["frame_skip"]) if "stack_num" in config else 1
    make = partial(_Pool, env_id, arguments, frame_stack > 1)
    return NativeEnvPoolSource(make, env_id, action_repeat, strict, frame_stack, seeds_rows=True)


def _import_envpool(draws: bool = False) -> Any:
    """Returns the EnvPool package, imported after the library that it needs to draw; raises UserError if that is missing."""
    from envpool_bridge.envs import egl

    if draws and egl.MISSING:
        raise UserError(
            f"{_PIXELS} of suite 'envpool' needs EGL: {egl.MISSING}. Install it (Debian: libegl1, and libgl1-mesa-dri where "
            f"no GPU draws)"
        )
    import envpool  # pyright: ignore[reportMissingImports]  optional

    return envpool


def _config(env_id: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        spec = _import_envpool().make_spec(env_id, **arguments)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise UserError(f"{env_id} of suite 'envpool': bad kwargs {arguments}: {error}") from error
    known = {*spec._config_keys, _PIXELS}
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise UserError(f"{env_id} of suite 'envpool': unknown options {unknown}: expected some of {sorted(known)}")
    return dict(zip(spec._config_keys, spec._config_values, strict=True))


class _Pool(VectorEnv):
    """EnvPool's pool behind Gymnasium's interface: seeds at a reset, and separate spaces of a single environment.

    The constructor inspects the spaces; the pool itself is made at the first reset.

    Args:
        env_id: EnvPool's id.
        arguments: Arguments of `envpool.make`.
        squeezes: whether to remove the axis of a stack of one.
        num_envs: number of rows.
        repeat: steps of the pool for each step; a row whose episode ends, or begins, takes no more of them.
    """

    def __init__(self, env_id: str, arguments: dict[str, Any], squeezes: bool, num_envs: int, repeat: int = 1) -> None:
        envpool = _import_envpool()
        self._make = partial(envpool.make, env_id, "gymnasium", num_envs=num_envs, **arguments)
        self._pool: Any = None
        spec = envpool.make_spec(env_id, num_envs=num_envs, **arguments)
        observation_space, action_space = _spaces_of(spec, "gymnasium_observation_space", "gymnasium_action_space")
        self.single_observation_space, self.single_action_space = (
            _with_infinite_bounds(observation_space),
            _with_infinite_bounds(action_space),
        )
        shape = self.single_observation_space.shape
        self._squeezes = squeezes and shape is not None and len(shape) == 3 and shape[0] == 1
        if self._squeezes:
            self.single_observation_space = _without_first_axis(self.single_observation_space)
        self.num_envs, self._repeat = num_envs, repeat
        self._ended = np.zeros(num_envs, bool)  # rows that the next step resets
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options:
            raise UserError(f"EnvPool takes no reset options: got {options}")
        if seed is not None or self._pool is None:
            self._pool = self._make(seed=self._seeds(seed))
            _spaces_of(self._pool, "observation_space", "action_space")  # the pool caches them
        observation, infos = self._pool.reset()
        self._ended = np.zeros(self.num_envs, bool)
        return self._observation(observation), _known(infos)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        result = self._pool.step(actions)
        if self._repeat > 1:
            result = self._repeated(actions, result)
        observation, reward, terminated, truncated, infos = result
        return self._observation(observation), reward, terminated, truncated, _known(infos)

    def _repeated(self, actions: Any, first: Any) -> Any:
        """Returns the results of repeated actions, from those of the first step."""
        result = map_leaves(np.array, (*first[:4], _known(first[4])))
        began = self._ended
        for _ in range(self._repeat - 1):
            rows = np.flatnonzero(~(began | result[2] | result[3])).astype(np.int32)
            if not len(rows):
                break
            total, step = result[1].copy(), self._pool.step(take(actions, rows), rows)
            write(result, (*step[:4], _known(step[4])), rows)
            result[1][rows] += total[rows]
        self._ended = result[2] | result[3]
        return result

    def close_extras(self, **kwargs: Any) -> None:
        self._pool = None  # this ends its threads

    def _seeds(self, seed: int | list[int | None] | None) -> list[int]:
        drawn = np.random.SeedSequence().generate_state(self.num_envs).tolist()
        if seed is None:
            each = drawn
        elif isinstance(seed, int):
            each = list(range(seed, seed + self.num_envs))
        else:
            each = [own if one is None else one for one, own in zip(seed, drawn, strict=True)]
        return [one % _SEEDS for one in each]

    def _observation(self, observation: Any) -> Any:
        return observation[:, 0] if self._squeezes else observation


def _spaces_of(maker: Any, *names: str) -> list[Any]:
    """Returns spaces, which EnvPool makes at the first access."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Gymnasium narrows bounds to the dtype that EnvPool declares
        return [getattr(maker, name) for name in names]


def _known(infos: dict[str, Any]) -> dict[str, Any]:
    """Returns infos without those that a task does not have ("players" of one-player games)."""
    return {name: value for name, value in infos.items() if value is not None}


def _with_infinite_bounds(space: Any) -> gymnasium.Space:
    """Replaces EnvPool's "unbounded", C++'s numeric limits, by infinity; `min` of floats is the least positive number."""
    if isinstance(space, dict):
        space = spaces.Dict({name: _with_infinite_bounds(child) for name, child in space.items()})
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _with_infinite_bounds(child) for name, child in space.spaces.items()})
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        limits = np.finfo(space.dtype.name)
        low = np.where((space.low == limits.tiny) | (space.low == limits.min), -np.inf, space.low)
        high = np.where(space.high == limits.max, np.inf, space.high)
        return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), space.shape, space.dtype.type)
    return space


def _without_first_axis(space: gymnasium.Space) -> gymnasium.Space:
    if not isinstance(space, spaces.Box):
        return space
    return spaces.Box(space.low[0], space.high[0], space.shape[1:], space.dtype.type)
