"""Samples with changed observations that mean the same: random shifts of images."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from agents.api import Array, Params, Sample, SampleFn
from agents.networks.observation_inputs import is_image
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec, LeafSpec
from envpool_bridge.spec.tree import leaves, map_leaves

_MOST_CHANNELS = 16  # as the image torsos tell channels from pixels


def random_shift(spec: EnvSpec, padding: int = 4, each_step: bool = False) -> SampleFn:
    """Shifts images by up to `padding` pixels, repeating their edges (DrQ: Kostrikov et al. 2021, arXiv:2004.13649, section 3.1).

    Each row of a sample is shifted by its own whole numbers of pixels, uniform over [-padding, padding] along height and width; all
    images of an observation alike. Everything else stays.

    Args:
        spec: its leaves of rank 3 are the images: [H, W, C], or [C, H, W] where C is at most 16 and W is more.
        padding: largest shift.
        each_step: each step of a window is shifted anew, as in the paper, which shifts an observation and the next one apart;
            False shifts a whole window alike, which recurrent networks and windows of single frames need.

    Returns:
        A step of `Replay.prepare`. It takes stacked observations as well as single frames that are stacked later.

    Raises:
        UserError: the observation has no image, or `padding` is less than 1.
    """
    if padding < 1:
        raise UserError(f"padding must be at least 1 pixel, or nothing is shifted: got {padding}")
    if not any(is_image(leaf) for leaf in leaves(spec.observation)):
        shapes = ", ".join(str(getattr(leaf, "shape", ())) for leaf in leaves(spec.observation))
        raise UserError(f"{spec.env_id}: a random shift needs an image of rank 3: got shapes {shapes}; leave it out")
    return partial(_shift_sample, spec, padding, each_step)


def _shift_sample(spec: EnvSpec, padding: int, each_step: bool, params: Params, sample: Sample, key: Array) -> Sample:
    del params
    trajectory = sample.trajectory
    steps, rows = trajectory.reward.shape
    shape = (steps + 1, rows, 2) if each_step else (1, rows, 2)
    shift = jax.random.randint(key, shape, -padding, padding + 1)
    shifted = map_leaves(partial(_shift_leaf, shift), spec.observation, trajectory.observation)
    return dataclasses.replace(sample, trajectory=dataclasses.replace(trajectory, observation=shifted))


def _shift_leaf(shift: Array, leaf: LeafSpec, images: Array) -> Array:
    if not isinstance(leaf, ArraySpec) or not is_image(leaf):
        return images
    single = images.ndim == 4  # frames of a stack that is yet to be put together: [L+F, N, H, W]
    if single and shift.shape[0] > 1:
        raise UserError(
            "each_step shifts stacked observations, but these are single frames, each of which belongs to several stacks: shift "
            "whole windows (each_step=False)"
        )
    channels_first = single or leaf.shape[0] <= _MOST_CHANNELS < leaf.shape[-1]
    move = partial(_shift_image, 2 if channels_first else 3)
    over_rows = jax.vmap(move, in_axes=(1, 0), out_axes=1)
    if shift.shape[0] == 1:
        return over_rows(images, shift[0])
    return jax.vmap(over_rows)(images[:, None], shift)[:, 0]


def _shift_image(height_from_end: int, images: Array, shift: Array) -> Array:
    """[..., H, W] or [..., H, W, C] with pixel (y, x) taken from (y + shift[0], x + shift[1]), or the nearest that there is."""
    axis = images.ndim - height_from_end
    for offset in range(2):
        size = images.shape[axis + offset]
        places = jnp.clip(jnp.arange(size) + shift[offset], 0, size - 1)
        images = jnp.take(images, places, axis=axis + offset, mode="clip")
    return images
