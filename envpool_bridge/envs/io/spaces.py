"""Conversion of Gymnasium spaces to specs; an error names the part of a space that cannot be stored."""

import dataclasses
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.validation import mask_groups
from envpool_bridge.errors import UnsupportedSpaceError
from envpool_bridge.spec.specs import ArraySpec, Bound, DiscreteSpec, EnvSpec, LeafSpec, MultiDiscreteSpec, SpecTree
from envpool_bridge.spec.tree import Path, is_dict, shown_path

# jax computes in 32 bits; wider sources are stored in 32 bits, declared as such in the spec, unless keep_64_bits is set.
_STORED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
_OBSERVED = "fiub"  # kinds of dtypes of Boxes that are observed
_INT32 = np.iinfo(np.int32)
_SHOWN_LENGTH = 200  # a Text shows all its characters
MASK = "action_mask"  # key in an observation Dict; the name that PettingZoo and Gymnasium use


def items_of_space(space: gymnasium.Space) -> dict[str, gymnasium.Space]:
    """Returns the items of a Dict; another space as the item "observation", next to which a wrapper can add some."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}


def items_of_observation(observation: Any) -> dict[str, Any]:
    """Returns the items of an observation of a Dict; another one as the item "observation"."""
    return observation if isinstance(observation, dict) else {"observation": observation}


def spec_of_spaces(
    observation: gymnasium.Space,
    action: gymnasium.Space,
    env_id: str,
    action_repeat: int,
    keep_64_bits: bool = False,
) -> EnvSpec:
    """Returns the spec of a row with these spaces.

    Args:
        observation: space of one environment: Box, Discrete, MultiDiscrete, MultiBinary, or Dicts and Tuples of them.
            An item "action_mask" of a Dict marks the legal values of a discrete action.
        action: space of one environment, likewise; its Boxes hold floats.
        env_id: Environment id for messages.
        action_repeat: emulator frames per env step.
        keep_64_bits: store 64-bit arrays and rewards unchanged, for readers other than jax.

    Raises:
        UnsupportedSpaceError: If a space is of an unsupported kind, or has unsupported values.
    """
    observed = _tree(observation, (), _Side("observation", env_id, keep_64_bits, _OBSERVED))
    acted = _tree(action, (), _Side("action", env_id, keep_64_bits, "f"))
    reward = "float64" if keep_64_bits else "float32"
    return EnvSpec(env_id, observed, acted, action_repeat, reward, _mask_keys(observed, acted, env_id))


def spec_without_conversion(side: Literal["observation", "action"], space: gymnasium.Space, env_id: str) -> SpecTree:
    """Returns the spec of values that keep all their bits, for readers other than jax. Actions may be any Box too.

    Raises:
        UnsupportedSpaceError: If an array cannot hold the values of a leaf.
    """
    return _tree(space, (), _Side(side, env_id, True, _OBSERVED))


@dataclasses.dataclass(frozen=True)
class _Side:
    """Kind ("observation" or "action") and environment of a conversion.

    Attributes:
        name: the kind.
        env_id: Environment id for messages.
        keep_64_bits: Keep 64 bits, as in `spec_of_spaces`.
        box_kinds: numpy's kinds of dtypes that a Box may have.
    """

    name: str
    env_id: str
    keep_64_bits: bool
    box_kinds: str

    def error(self, path: Path, space: gymnasium.Space, why: str = "") -> UnsupportedSpaceError:
        return _unsupported(self.env_id, f"{shown_path(self.name, path)} is {_shown(space)}{why}")


def _tree(space: gymnasium.Space, path: Path, side: _Side) -> SpecTree:
    if isinstance(space, spaces.Dict):
        unnamed = [key for key in space.spaces if not isinstance(key, str)]
        if unnamed or not space.spaces:
            raise side.error(path, space, f" with keys {unnamed} that are not strings" if unnamed else " without items")
        return {key: _tree(space.spaces[key], (*path, key), side) for key in sorted(space.spaces)}
    if isinstance(space, spaces.Tuple):
        if not space.spaces:
            raise side.error(path, space, " without items")
        return tuple(_tree(child, (*path, number), side) for number, child in enumerate(space.spaces))
    return _leaf(space, path, side)


def _leaf(space: gymnasium.Space, path: Path, side: _Side) -> LeafSpec:
    shown = shown_path(side.name, path)
    if isinstance(space, spaces.Discrete):
        _validate_int32(space, shown, side.env_id)
        return DiscreteSpec(int(space.n), int(space.start), space.dtype.name)
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.astype(np.int64).ravel().tolist(), space.start.astype(np.int64).ravel().tolist()
        for size, start in zip(sizes, starts, strict=True):
            _validate_int32(spaces.Discrete(size, start=start), f"an element of {shown}", side.env_id)
        return MultiDiscreteSpec(space.shape, tuple(sizes), tuple(starts), space.dtype.name)
    if isinstance(space, spaces.MultiBinary):
        if side.name == "observation":
            return ArraySpec(space.shape, space.dtype.name, 0, 1)
        count = int(np.prod(space.shape))
        return MultiDiscreteSpec(space.shape, (2,) * count, (0,) * count, space.dtype.name)
    if isinstance(space, spaces.Box) and space.dtype.kind in side.box_kinds:
        source = space.dtype.name
        dtype = source if side.keep_64_bits else _STORED.get(source, source)
        _validate_bounds_fit(space, dtype, shown, side.env_id)
        low, high = (_bound(space, which, dtype, inside=side.name == "action") for which in ("low", "high"))
        return ArraySpec(space.shape, dtype, low, high, source)
    raise side.error(path, space)


def _mask_keys(observation: SpecTree, action: SpecTree, env_id: str) -> tuple[str, ...]:
    """Returns the keys of the action mask in the observation, if it has one."""
    if not is_dict(observation) or MASK not in observation:
        return ()
    mask, groups = observation[MASK], mask_groups(action)
    if not groups:
        raise UnsupportedSpaceError(
            f"{env_id}: observation[{MASK!r}] needs a Discrete or MultiDiscrete action to mask, got {action}: rename the item, "
            f"or wrap the environment"
        )
    fits = isinstance(mask, ArraySpec) and mask.shape == (sum(groups),) and np.dtype(mask.dtype).kind in "iub"
    if not fits or not all(np.all(limit == value) for limit, value in zip(mask.limits(), (0, 1), strict=True)):
        raise UnsupportedSpaceError(
            f"{env_id}: expected observation[{MASK!r}] to be a MultiBinary({sum(groups)}), one element for each value of "
            f"each choice, got {mask}: declare it so, or rename the item"
        )
    return (MASK,)


def _validate_int32(space: spaces.Discrete, path: str, env_id: str) -> None:
    """Raises if the size or a value of a Discrete does not fit the stored int32."""
    size, start = int(space.n), int(space.start)
    for name, value in (("n", size), ("start", start), ("start + n", start + size)):
        if not _INT32.min <= value <= _INT32.max:
            raise _too_wide(env_id, f"{path} is {space}, whose {name} {value}", "int32")


def _validate_bounds_fit(space: spaces.Box, dtype: str, path: str, env_id: str) -> None:
    """Raises on integer bounds that the stored `dtype` cannot hold; the source's own limits only mean "unbounded"."""
    if space.dtype.kind not in "iu" or space.dtype == dtype:
        return
    source, stored = np.iinfo(space.dtype.name), np.iinfo(dtype)
    for name, values in (("low", space.low), ("high", space.high)):
        bounded = values[(values != source.min) & (values != source.max)]
        too_wide = bounded[(bounded < stored.min) | (bounded > stored.max)]
        if too_wide.size:
            raise _too_wide(env_id, f"{path} is {_shown(space)}, whose {name} {too_wide[0]}", dtype)


def _unsupported(env_id: str, problem: str) -> UnsupportedSpaceError:
    return UnsupportedSpaceError(
        f"{env_id}: {problem}, which is not supported: expected Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple "
        f"of them with names that are strings (actions: Boxes of floats); wrap the environment (for example "
        f"gymnasium.wrappers.FilterObservation, TransformObservation or TransformAction)"
    )


def _too_wide(env_id: str, problem: str, dtype: str) -> UnsupportedSpaceError:
    return UnsupportedSpaceError(
        f"{env_id}: {problem} does not fit the 32 bits ({dtype}) of stored values: declare narrower bounds if the "
        f"values keep to them, or wrap the environment so that they do (for example "
        f"gymnasium.wrappers.TransformObservation, or gymnasium.wrappers.TransformAction)"
    )


def _shown(space: gymnasium.Space) -> str:
    """Formats the space on one short line: numpy breaks the bounds of a long Box."""
    text = " ".join(str(space).split())
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."


def _bound(space: spaces.Box, side: str, dtype: str, inside: bool) -> Bound:
    """Returns a Box's low or high as a bound in the stored `dtype`.

    Args:
        space: the Box.
        side: "low" or "high".
        dtype: name of the stored dtype.
        inside: whether finite bounds are rounded into the Box, so that values within them lie in it, unless the dtype has none.
    """
    values = getattr(space, side)
    if values.dtype.kind in "iu":
        limits, stored_limits = np.iinfo(values.dtype), np.iinfo(dtype)
        if (values == (limits.min if side == "low" else limits.max)).all():
            return None  # the dtype itself is the range
        values = values.clip(stored_limits.min, stored_limits.max)  # only elements at the source's limit change
    with np.errstate(over="ignore"):
        stored = values.astype(dtype)
    if inside and stored.dtype.kind == "f":
        is_outside = np.isfinite(stored) & (stored < values if side == "low" else stored > values)
        inwards = stored.dtype.type(np.inf if side == "low" else -np.inf)
        rounded = np.nextafter(stored, inwards)
        # Between the bounds of a narrow Box may lie no value of the stored dtype: the nearest one is taken.
        is_inside = rounded <= space.high if side == "low" else rounded >= space.low
        stored = np.where(is_outside & is_inside, rounded, stored)
    if stored.dtype.kind == "b" or (stored.dtype.kind == "f" and stored.size and np.isinf(stored).all()):
        return None
    first = stored.flat[0] if stored.size else stored.dtype.type(0)
    if (stored == first).all():
        return first.item()
    return tuple(stored.ravel().tolist())
