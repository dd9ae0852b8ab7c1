"""Scale in which networks see the leaves of an observation, from the bounds that a space declares and not from its dtype.

- Images are scaled by their extreme bounds, whatever their dtype: bytes are divided by 255. Without finite bounds they keep theirs.
- Other integers are scaled by the bounds of each element. Those of 32 bits without bounds keep their units.
- Other floats are scaled in the same way where their bounds lie beyond 10. Smaller ones keep their units, and so do those whose
  bounds lie beyond a million, which only stand for none.
- Bools and categories are 0 and 1.

Scaled values lie in [-1, 1]. The legal value nearest to 0 becomes 0, the one farthest from it 1 or -1. Normalization by running
statistics replaces the scale of all numbers apart from images and flags: see `normalized_spec`.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from agents.api import Array
from agents.networks.torsos.entity_sets import masks_of
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import Path, items, unflatten

_LARGEST_UNSCALED, _LARGEST_BOUND = 10.0, 1e6  # of floats
_MOST_CHANNELS = 16  # of an image whose channels, or frames, are the first axis


def is_image(leaf: LeafSpec) -> bool:
    """Returns whether the leaf is an image: an array of rank 3, or frames [F, H, W, C] or [F, C, H, W] of rank 4."""
    if not isinstance(leaf, ArraySpec) or 0 in leaf.shape:
        return False
    is_stack = len(leaf.shape) == 4 and leaf.shape[0] <= _MOST_CHANNELS < sorted(leaf.shape[1:])[1]
    return len(leaf.shape) == 3 or is_stack or (len(leaf.shape) == 4 and leaf.frames > 1)


def image_shape(leaf: ArraySpec) -> tuple[int, int, int]:
    """Returns (H, W, C) of an image as convolutions see it: its channels times its frames are the last axis."""
    frames, shape, has_channels_first = _axes(leaf)
    height, width, channels = (*shape[1:], shape[0]) if has_channels_first else shape
    return height, width, frames * channels


def image_values(leaf: ArraySpec, image: Array) -> Array:
    """Returns images [N, *leaf] as scaled float32 [N, H, W, C]."""
    frames, shape, has_channels_first = _axes(leaf)
    split = image.reshape((image.shape[0], frames, *shape))
    split = jnp.moveaxis(split, 2, -1) if has_channels_first else split
    channels_last = jnp.moveaxis(split, 1, -2)
    return _within(*_extremes(leaf), channels_last.reshape((image.shape[0], *image_shape(leaf))))


def scaled(leaf: ArraySpec, x: Array) -> Array:
    """Returns values [..., *leaf] as scaled float32.

    Integers that are no image and arrive as floats were normalized by running statistics: they stay.
    """
    if is_image(leaf):
        return _within(*_extremes(leaf), x)
    low, high = leaf.limits()
    if leaf.dtype.startswith("float"):
        largest = np.maximum(np.abs(low), np.abs(high))
        high = np.where((largest > _LARGEST_UNSCALED) & (largest <= _LARGEST_BOUND), high, np.inf)
        return _within(low, high, x)
    return _within(low, high, x) if jnp.issubdtype(x.dtype, jnp.integer) else x.astype(jnp.float32)


def is_bounded(leaf: ArraySpec) -> bool:
    """Returns whether all elements have two finite bounds."""
    return bool(np.isfinite(_extremes(leaf)).all())


def _extremes(leaf: ArraySpec) -> tuple[np.ndarray, np.ndarray]:
    low, high = leaf.limits()
    return low.min(), high.max()


def _within(low: np.ndarray, high: np.ndarray, x: Array) -> Array:
    values = x.astype(jnp.float32)
    is_bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    if not is_bounded.any():
        return values
    shift = np.where(is_bounded, np.clip(0.0, low, high), 0.0)
    size = np.where(is_bounded, np.maximum(high - shift, shift - low), 1.0)
    moved = values - jnp.asarray(shift, jnp.float32) if shift.any() else values
    return moved / jnp.asarray(size, jnp.float32)


def normalized_leaves(spec: EnvSpec) -> list[tuple[Path, ArraySpec]]:
    """Returns (keys, spec) of the leaves that running statistics normalize: numbers that are no masks, flags or scaled images."""
    leaves = list(items(spec.observation))
    masks = {spec.action_mask or None, *masks_of(leaves).values()}
    return [(path, leaf) for path, leaf in leaves if path not in masks and _is_normalized(leaf)]


def normalized_spec(spec: EnvSpec, is_on: bool) -> EnvSpec:
    """Returns the spec of observations whose `normalized_leaves` are normalized: float32 without bounds; or else the same spec.

    Networks of agents that normalize are made from it, so that nothing is scaled twice.
    """
    if not is_on:
        return spec
    floats = {
        path: dataclasses.replace(leaf, dtype="float32", low=None, high=None) for path, leaf in normalized_leaves(spec)
    }
    new = [floats.get(path, leaf) for path, leaf in items(spec.observation)]
    return dataclasses.replace(spec, observation=unflatten(spec.observation, new))


def _is_normalized(leaf: LeafSpec) -> bool:
    if not isinstance(leaf, ArraySpec):
        return False
    is_flag = not leaf.dtype.startswith("float") and _extremes(leaf) == (0.0, 1.0)
    return not is_flag and not (is_image(leaf) and is_bounded(leaf))


def _axes(leaf: ArraySpec) -> tuple[int, tuple[int, ...], bool]:
    """Returns the number of frames, the shape of one with three axes, and whether its first axis has the channels.

    That is so if it is at most 16 and both others are larger. A board, whose sides are short, has its planes last.
    """
    is_stack = leaf.frames > 1 or len(leaf.shape) == 4
    frames, shape = (leaf.shape[0], leaf.shape[1:]) if is_stack else (1, leaf.shape)
    shape = shape if len(shape) == 3 else (*shape, 1)
    return frames, shape, shape[0] <= _MOST_CHANNELS < min(shape[1:])
