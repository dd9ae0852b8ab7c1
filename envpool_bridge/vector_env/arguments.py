"""Arguments of PoolVectorEnv: environment functions, spaces, and the division of environments among workers."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from envpool_bridge.envs.io.spaces import spec_without_conversion
from envpool_bridge.errors import UnsupportedSpaceError, UserError
from envpool_bridge.limits import count_cores
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, SpecTree
from envpool_bridge.spec.tree import leaves, map_leaves, shown_path

WINDOW = 16  # steps in a slot; an observation is copied from one slot to the next this often
EnvFn = Callable[[], gymnasium.Env]
_PLACEHOLDER = ArraySpec((1,), "float32")


def list_env_fns(env_fns: EnvFn | Iterable[EnvFn], num_envs: int | None) -> tuple[EnvFn, ...]:
    """Returns one function for each environment.

    Raises:
        UserError: If there are no functions, or `num_envs` contradicts their number.
    """
    if num_envs is not None and (isinstance(num_envs, bool) or num_envs < 1):
        raise UserError(f"num_envs must be a positive integer, got {num_envs!r}: pass further arguments by name")
    if callable(env_fns):
        if num_envs is None:
            raise UserError("one env_fn needs num_envs: pass PoolVectorEnv(env_fn, num_envs), or a list of functions")
        return (env_fns,) * num_envs
    functions = tuple(env_fns)
    if not functions or not all(map(callable, functions)):
        raise UserError(f"env_fns must be functions that make one environment each, got {functions!r}")
    if num_envs not in (None, len(functions)):
        raise UserError(f"num_envs is {num_envs}, but there are {len(functions)} env_fns: leave num_envs out")
    return functions


def _validate_positive(name: str, value: Any) -> None:
    if not isinstance(value, int | np.integer) or value < 1:
        raise UserError(f"{name} must be a positive integer, got {value!r}")


def batch_observation_space(mode: Any, env_fns: tuple[EnvFn, ...], first: Space) -> tuple[Space, Space]:
    """Returns (single, batched) observation space.

    Args:
        mode: "same", "different", or (batched space, single space).
        env_fns: Functions that make one environment each, whose space is read; for "different".
        first: space of the first environment.

    Raises:
        UserError: another mode.
        TypeError: If a pair with other things than spaces.
    """
    if isinstance(mode, tuple) and len(mode) == 2:  # pyright: ignore[reportUnknownArgumentType]
        batched, single = mode  # pyright: ignore[reportUnknownVariableType]
        if not (isinstance(batched, Space) and isinstance(single, Space)):
            raise TypeError(f"observation_mode must be a pair of spaces (batched, single), got {mode!r}")
        return single, batched  # pyright: ignore[reportUnknownVariableType]
    if mode == "same":
        return first, batch_space(first, len(env_fns))
    if mode == "different":
        each = [_observation_space(make) for make in env_fns]
        return each[0], batch_differing_spaces(each)
    expected = "'same' or 'different' or tuple of single and batch observation space"
    raise UserError(f"Invalid `observation_mode`, expected: {expected}, actual got {mode}")


def _observation_space(make: EnvFn) -> Space:
    env = make()
    try:
        return env.observation_space
    finally:
        env.close()


def array_spec(side: Literal["observation", "action"], space: Space, env_id: str) -> SpecTree | None:
    """Returns the spec of a space; None if shared arrays cannot hold its values, which are then sent as objects."""
    try:
        return spec_without_conversion(side, space, env_id)
    except UnsupportedSpaceError:
        return None


def row_spec(env_id: str, observation: SpecTree | None, action: SpecTree | None) -> EnvSpec:
    """Returns the spec of a row, with placeholders for spaces that are sent as objects."""
    observed = _PLACEHOLDER if observation is None else observation
    return EnvSpec(env_id, observed, _PLACEHOLDER if action is None else action, reward_dtype="float64")


def without_bounds(spec: SpecTree) -> SpecTree | None:
    """Returns the spec of rows whose bounds differ; None if a leaf is discrete, whose numbers of values may differ."""
    if not all(isinstance(leaf, ArraySpec) for leaf in leaves(spec)):
        return None
    return map_leaves(lambda leaf: dataclasses.replace(leaf, low=None, high=None), spec)


def validate_no_custom_space(space: Space, path: tuple[str | int, ...] = ()) -> None:
    """Raises UnsupportedSpaceError for a leaf whose class is not one of Gymnasium's."""
    if isinstance(space, spaces.Dict):
        children = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        children = list(enumerate(space.spaces))
    else:
        children = []
        if not type(space).__module__.startswith("gymnasium.spaces"):
            raise UnsupportedSpaceError(
                f"{shown_path('observation', path)} is a {type(space).__name__}, which shared memory cannot hold: pass "
                "shared_memory=False to send observations as objects, which is slower"
            )
    for key, child in children:
        validate_no_custom_space(child, (*path, key))


def divide_rows(
    num_envs: int, num_workers: int | None, lanes_per_worker: int, max_concurrency: int | None
) -> PoolShape:
    """Returns the division of environments among workers.

    Args:
        num_envs: number of environments.
        num_workers: number of processes; None for as many as cores and `max_concurrency` allow.
        lanes_per_worker: groups of environments that a worker alternates between.
        max_concurrency: largest number of environments that step at the same time.

    Raises:
        UserError: If a number is not a positive integer, the environments cannot be divided equally, or there are more
            workers than `max_concurrency`.
    """
    _validate_positive("lanes_per_worker", lanes_per_worker)
    if num_workers is not None:
        _validate_positive("num_workers", num_workers)
    if max_concurrency is not None:
        _validate_positive("max_concurrency", max_concurrency)
    limit = num_envs if max_concurrency is None else int(max_concurrency)
    if num_workers is None:
        cores = min(count_cores(), limit)
        fitting = [count for count in range(1, cores + 1) if num_envs % (count * lanes_per_worker) == 0]
        num_workers = max(fitting, default=1)
    parts = num_workers * lanes_per_worker
    if num_envs % parts:
        raise UserError(
            f"num_envs must be a multiple of num_workers x lanes_per_worker: got {num_envs}, {num_workers} and "
            f"{lanes_per_worker}"
        )
    if num_workers > limit:
        raise UserError(f"num_workers must be at most max_concurrency: got {num_workers} and {limit}")
    return PoolShape(num_workers, lanes_per_worker, num_workers, num_envs // parts, WINDOW, 2)
