"""Gymnasium spaces as specs, or a refusal that names what cannot be stored."""

from collections.abc import Iterator

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.errors import UnsupportedSpaceError
from envpool_bridge.specs import ArraySpec, Bound, DiscreteSpec, EnvSpec

# jax computes in 32 bits; wider sources are stored in 32 bits, declared as such in the spec, unless somebody keeps them.
_STORED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
_INT32 = np.iinfo(np.int32)


def env_spec(env: gymnasium.Env, env_id: str, action_repeat: int = 1, keep_64_bits: bool = False) -> EnvSpec:
    """The spec of one environment; see `spec_of_spaces`."""
    return spec_of_spaces(env.observation_space, env.action_space, env_id, action_repeat, keep_64_bits)


def spec_of_spaces(
    observation: gymnasium.Space,
    action: gymnasium.Space,
    env_id: str,
    action_repeat: int,
    keep_64_bits: bool = False,
) -> EnvSpec:
    """The spec of a row with these spaces.

    Args:
        observation: of one environment.
        action: of one environment.
        env_id: for messages.
        action_repeat: emulator frames per env step.
        keep_64_bits: store 64-bit arrays and rewards as they are, for readers other than jax.

    Raises:
        UnsupportedSpaceError: a space is of a kind, or has values, that we cannot store.
    """
    if isinstance(action, spaces.Box) and not np.issubdtype(action.dtype, np.floating):
        raise _refusal(env_id, f"action is {_shown(action)}")
    return EnvSpec(
        env_id,
        _leaf(observation, "observation", env_id, keep_64_bits),
        _leaf(action, "action", env_id, keep_64_bits),
        action_repeat,
        "float64" if keep_64_bits else "float32",
    )


def _leaf(space: gymnasium.Space, path: str, env_id: str, keep_64_bits: bool) -> ArraySpec | DiscreteSpec:
    if isinstance(space, spaces.Discrete):
        _require_int32(space, path, env_id)
        return DiscreteSpec(int(space.n), int(space.start), space.dtype.name)
    if isinstance(space, spaces.Box) and _is_storable(space):
        source = space.dtype.name
        dtype = source if keep_64_bits else _STORED.get(source, source)
        _require_bounds_fit(space, dtype, path, env_id)
        return ArraySpec(space.shape, dtype, _bound(space.low, dtype), _bound(space.high, dtype), source)
    raise _kind_refusal(space, path, env_id)


def _is_storable(space: gymnasium.Space) -> bool:
    """Whether a space of this kind, on its own, is what a slot can hold."""
    return isinstance(space, spaces.Discrete) or (isinstance(space, spaces.Box) and space.dtype.kind in "fiub")


def _require_int32(space: spaces.Discrete, path: str, env_id: str) -> None:
    """Refuses a Discrete whose size or values do not fit the int32 they are stored in."""
    size, start = int(space.n), int(space.start)
    for name, value in (("n", size), ("start", start), ("start + n", start + size)):
        if not _INT32.min <= value <= _INT32.max:
            raise _width_refusal(env_id, f"{path} is {space}, whose {name} {value}", "int32")


def _require_bounds_fit(space: spaces.Box, dtype: str, path: str, env_id: str) -> None:
    """Refuses integer bounds that the stored `dtype` cannot hold; the source's own limits only mean "unbounded"."""
    if space.dtype.kind not in "iu" or space.dtype == dtype:
        return
    source, stored = np.iinfo(space.dtype.name), np.iinfo(dtype)
    for name, values in (("low", space.low), ("high", space.high)):
        bounded = values[(values != source.min) & (values != source.max)]
        too_wide = bounded[(bounded < stored.min) | (bounded > stored.max)]
        if too_wide.size:
            raise _width_refusal(env_id, f"{path} is {_shown(space)}, whose {name} {too_wide[0]}", dtype)


def _kind_refusal(space: gymnasium.Space, path: str, env_id: str) -> UnsupportedSpaceError:
    """Names the first leaf of an unsupported kind; if every leaf could be stored, the composite that holds them."""
    leaves = list(_leaves(space, path))
    for leaf_path, leaf in leaves:
        if not _is_storable(leaf):
            return _refusal(env_id, f"{leaf_path} is {_shown(leaf)}")
    inside = ", ".join(f"{leaf_path}: {_shown(leaf)}" for leaf_path, leaf in leaves) or "none"
    return _refusal(env_id, f"{path} is a {type(space).__name__} (its leaves: {inside})")


def _leaves(space: gymnasium.Space, path: str) -> Iterator[tuple[str, gymnasium.Space]]:
    """The leaves of a nested space with their paths."""
    if isinstance(space, spaces.Dict):
        for name, child in space.spaces.items():
            yield from _leaves(child, f"{path}[{name!r}]")
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, f"{path}[{index}]")
    else:
        yield path, space


def _refusal(env_id: str, what: str) -> UnsupportedSpaceError:
    return UnsupportedSpaceError(
        f"{env_id}: {what}, which is not supported: expected one Box or Discrete observation and one "
        f"floating-point Box or Discrete action; wrap the environment (for example "
        f"gymnasium.wrappers.FlattenObservation, or gymnasium.wrappers.TransformAction)"
    )


def _width_refusal(env_id: str, what: str, dtype: str) -> UnsupportedSpaceError:
    return UnsupportedSpaceError(
        f"{env_id}: {what} does not fit the 32 bits ({dtype}) that values are stored in: declare narrower bounds if the "
        f"values keep to them, or wrap the environment so that they do (for example "
        f"gymnasium.wrappers.TransformObservation, or gymnasium.wrappers.TransformAction)"
    )


def _shown(space: gymnasium.Space) -> str:
    """The space on one line: numpy breaks the bounds of a long Box."""
    return " ".join(str(space).split())


def _bound(values: np.ndarray, dtype: str) -> Bound:
    """`values`, a Box's low or high in its own dtype, as a bound in the stored `dtype`."""
    if values.dtype.kind in "iu":
        limits, stored_limits = np.iinfo(values.dtype), np.iinfo(dtype)
        if np.isin(values, (limits.min, limits.max)).all():
            return None  # the dtype itself is the range
        values = values.clip(stored_limits.min, stored_limits.max)  # elements at the source's limit; the rest fit
    with np.errstate(over="ignore"):
        stored = values.astype(dtype)
    if stored.dtype.kind == "f" and np.isinf(stored).all():
        return None
    if stored.dtype.kind == "b":
        return None
    first = stored.flat[0] if stored.size else stored.dtype.type(0)
    if (stored == first).all():
        return first.item()
    return tuple(stored.ravel().tolist())
