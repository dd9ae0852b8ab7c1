"""Gymnasium spaces as specs, or a refusal that names the leaf."""

from collections.abc import Iterator

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.errors import UnsupportedSpaceError
from envpool_bridge.specs import ArraySpec, Bound, DiscreteSpec, EnvSpec

# jax computes in 32 bits; wider sources are stored in 32 bits, declared as such in the spec.
_STORED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def env_spec(env: gymnasium.Env, env_id: str, action_repeat: int = 1) -> EnvSpec:
    """The spec of one environment.

    Raises:
        UnsupportedSpaceError: a space has a leaf we cannot store.
    """
    return spec_of_spaces(env.observation_space, env.action_space, env_id, action_repeat)


def spec_of_spaces(observation: gymnasium.Space, action: gymnasium.Space, env_id: str, action_repeat: int) -> EnvSpec:
    """The spec of a row with these spaces. Raises UnsupportedSpaceError."""
    action_leaf = _leaf(action, "action", env_id)
    if isinstance(action_leaf, ArraySpec) and not np.issubdtype(action_leaf.dtype, np.floating):
        raise _refusal(env_id, "action", action)
    return EnvSpec(env_id, _leaf(observation, "observation", env_id), action_leaf, action_repeat)


def _leaf(space: gymnasium.Space, path: str, env_id: str) -> ArraySpec | DiscreteSpec:
    if isinstance(space, spaces.Discrete):
        return DiscreteSpec(int(space.n), int(space.start))
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub":
        source = space.dtype.name
        dtype = _STORED.get(source, source)
        return ArraySpec(space.shape, dtype, _bound(space.low, dtype), _bound(space.high, dtype), source)
    for leaf_path, leaf in _leaves(space, path):
        raise _refusal(env_id, leaf_path, leaf)
    raise _refusal(env_id, path, space)


def _leaves(space: gymnasium.Space, path: str) -> Iterator[tuple[str, gymnasium.Space]]:
    """The leaves of a nested space with their paths; only the composite kinds themselves are what we lack."""
    if isinstance(space, spaces.Dict):
        for name, child in space.spaces.items():
            yield from _leaves(child, f"{path}[{name!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, space


def _refusal(env_id: str, path: str, space: gymnasium.Space) -> UnsupportedSpaceError:
    return UnsupportedSpaceError(
        f"{env_id}: {path} is {space}, which is not supported: expected one Box or Discrete observation and one "
        f"floating-point Box or Discrete action; wrap the environment (for example "
        f"gymnasium.wrappers.FlattenObservation, or gymnasium.wrappers.TransformAction)"
    )


def _bound(values: np.ndarray, dtype: str) -> Bound:
    with np.errstate(over="ignore"):
        stored = values.astype(dtype)
    if stored.dtype.kind == "f" and np.isinf(stored).all():
        return None
    if stored.dtype.kind in "iu" and np.isin(stored, (np.iinfo(dtype).min, np.iinfo(dtype).max)).all():
        return None  # the dtype itself is the range
    if stored.dtype.kind == "b":
        return None
    first = stored.flat[0] if stored.size else stored.dtype.type(0)
    if (stored == first).all():
        return first.item()
    return tuple(stored.ravel().tolist())
