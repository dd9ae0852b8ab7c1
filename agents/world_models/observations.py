"""Observations as a world model sees them: one vector of all numbers and categories, and images."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Observation
from agents.networks.observation_inputs import make_inputs
from agents.networks.observation_scale import image_shape, image_values, is_bounded
from agents.networks.observation_scale import is_image as is_any_image
from agents.ops.symlog import symexp, symlog
from agents.ops.two_hot import cross_entropy
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec, MultiDiscreteSpec
from envpool_bridge.spec.tree import Path, lookup, path_name

_SMALLEST_IMAGE = 16  # pixels per side; smaller arrays are vectors
_MOST_HALVINGS = 4
_SMALLEST_PLANE = 4  # pixels per side after the convolutions


class Decoded(NamedTuple):
    """Reconstruction of an observation.

    Attributes:
        vector: [..., V] float32: symlog numbers, and logits of categories.
        images: [..., H, W, C] float32 each, in [0, 1].
    """

    vector: Array
    images: tuple[Array, ...]


class ModelObservations(NamedTuple):
    """Leaves of an environment's observations.

    Attributes:
        vectors: (keys, spec) of the leaves that are no images.
        images: (keys, spec) of the images.
    """

    vectors: tuple[tuple[Path, LeafSpec], ...]
    images: tuple[tuple[Path, ArraySpec], ...]

    @property
    def num_numbers(self) -> int:
        """V, size of the vector."""
        return sum(size for leaf in self.vectors for size, _ in _elements(leaf[1]))

    def image_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Returns (H, W, C) of each image."""
        return tuple(map(image_shape, (leaf for _, leaf in self.images)))

    def vector(self, observation: Observation) -> Array:
        """Returns the vector [..., V] of observations [..., *leaf]: symlog numbers, and categories as one-hot vectors."""
        return jnp.concatenate([_encode(leaf, lookup(observation, path)) for path, leaf in self.vectors], axis=-1)

    def pixels(self, observation: Observation) -> tuple[Array, ...]:
        """Returns the images, [..., H, W, C] float32 in [0, 1] each."""
        pixels = []
        for path, leaf in self.images:
            image = lookup(observation, path)
            lead = image.shape[: image.ndim - len(leaf.shape)]
            flat = image_values(leaf, image.reshape((-1, *leaf.shape)))
            flat = flat if leaf.limits()[0].min() >= 0.0 else (flat + 1.0) / 2.0  # scaled to [-1, 1]
            pixels.append(flat.reshape((*lead, *flat.shape[1:])))
        return tuple(pixels)

    def reconstruction_loss(self, decoded: Decoded, observation: Observation) -> Array:
        """Returns [...]: squared errors of symlog numbers and pixels, cross-entropies of categories, summed."""
        loss = jnp.zeros(())
        if self.vectors:
            loss += self._vector_loss(decoded.vector, self.vector(observation))
        for image, target in zip(decoded.images, self.pixels(observation), strict=True):
            loss += jnp.sum(jnp.square(image - target), axis=(-3, -2, -1))
        return loss

    def compare(self, decoded: Decoded, observation: Observation) -> dict[str, tuple[Array, Array]]:
        """Returns observations [..., *leaf] and their reconstructions by name of the leaf.

        Both are numbers [..., V] in the environment's units, a category as probabilities; or images [..., H, W, C] in [0, 1].
        """
        pairs: dict[str, tuple[Array, Array]] = {}
        start = 0
        for path, leaf in self.vectors:
            size = sum(size for size, _ in _elements(leaf))
            output = decoded.vector[..., start : start + size]
            pairs[_name(path)] = _numbers(leaf, lookup(observation, path)), _decode(leaf, output)
            start += size
        for (path, _), real, image in zip(self.images, self.pixels(observation), decoded.images, strict=True):
            pairs[_name(path)] = real, image
        return pairs

    def _vector_loss(self, decoded: Array, target: Array) -> Array:
        loss, start = jnp.zeros(()), 0
        for size, is_category in (element for _, leaf in self.vectors for element in _elements(leaf)):
            output, wanted = (x[..., start : start + size] for x in (decoded, target))
            error = cross_entropy(output, wanted) if is_category else jnp.sum(jnp.square(output - wanted), axis=-1)
            loss, start = loss + error, start + size
        return loss


def make_observations(spec: EnvSpec) -> ModelObservations:
    """Returns all leaves of the observation but the action mask and what only critics may see; raises UserError if none is left."""
    leaves = make_inputs(spec, "mlp", without=spec.critic_only).leaves
    images = tuple((path, leaf) for path, leaf in leaves if isinstance(leaf, ArraySpec) and is_image(leaf))
    names = {path for path, _ in images}
    return ModelObservations(tuple((path, leaf) for path, leaf in leaves if path not in names), images)


def is_image(leaf: ArraySpec) -> bool:
    """Returns whether an array is an image: of three axes or frames of them, or two of bytes, within finite bounds.

    It has at least 16 pixels on its shorter side.
    """
    has_rank = is_any_image(leaf) or (len(leaf.shape) == 2 and leaf.frames == 1 and leaf.dtype == "uint8")
    return has_rank and min(image_shape(leaf)[:2]) >= _SMALLEST_IMAGE and is_bounded(leaf)


def num_halvings(height: int, width: int) -> int:
    """Returns how often convolutions halve an image: 4 times from 64 pixels on, less often smaller ones."""
    halvings = 1
    while halvings < _MOST_HALVINGS and min(height, width) // 2 ** (halvings + 1) >= _SMALLEST_PLANE:
        halvings += 1
    return halvings


def _elements(leaf: LeafSpec) -> list[tuple[int, bool]]:
    """Returns (size, whether it is a category) of each part of a leaf's vector."""
    if isinstance(leaf, DiscreteSpec):
        return [(leaf.num_values, True)]
    if isinstance(leaf, MultiDiscreteSpec):
        return [(size, True) for size in leaf.num_values]
    return [(math.prod(leaf.shape), False)]


def _encode(leaf: LeafSpec, x: Array) -> Array:
    numbers = _numbers(leaf, x)
    return symlog(numbers) if isinstance(leaf, ArraySpec) else numbers


def _numbers(leaf: LeafSpec, x: Array) -> Array:
    """Returns values [..., *leaf] as float32 [..., V]: numbers as they are, categories as one-hot vectors."""
    flat = x.reshape((*x.shape[: x.ndim - len(leaf.shape)], -1))
    if isinstance(leaf, ArraySpec):
        return flat.astype(jnp.float32)
    sizes = [size for size, _ in _elements(leaf)]
    return jnp.concatenate([jax.nn.one_hot(flat[..., i], size) for i, size in enumerate(sizes)], axis=-1)


def _decode(leaf: LeafSpec, output: Array) -> Array:
    """Returns the values that outputs [..., V] of a decoder mean, in the form of `_numbers`."""
    if isinstance(leaf, ArraySpec):
        return symexp(output)
    sizes = [size for size, _ in _elements(leaf)]
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes) - 1)]
    return jnp.concatenate([jax.nn.softmax(part) for part in jnp.split(output, ends, axis=-1)], axis=-1)


def _name(path: Path) -> str:
    return path_name(path) or "observation"
