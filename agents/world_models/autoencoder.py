"""Encoder and decoder of a world model's observations.

Source: Hafner et al. 2025 (DreamerV3, arXiv:2301.04104), "Model architecture".
"""

import math

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array, Observation
from agents.networks.config import DTypeName
from agents.world_models.layers import BlockDense, Layers, NormSiLU, dense, fan_in_init
from agents.world_models.observations import Decoded, ModelObservations, num_halvings
from agents.world_models.rssm import Latent
from agents.world_models.sizes import Sizes

_FACTORS = (2, 3, 4, 4)  # of `depth`, channels of the convolutions
_KERNEL = (5, 5)
_NUM_LAYERS = 3


class Encoder(nn.Module):
    """Encoder of observations [..., *leaf] to tokens [..., E]: dense layers of the vector, and convolutions of each image.

    Attributes:
        observations: Leaves of the observation.
        sizes: Sizes of all layers.
        dtype: Type of the computation.
    """

    observations: ModelObservations
    sizes: Sizes
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, observation: Observation) -> Array:
        tokens = []
        if self.observations.vectors:
            layers = Layers(_NUM_LAYERS, self.sizes.units, self.dtype, name="vector")
            tokens.append(layers(self.observations.vector(observation)))
        for number, image in enumerate(self.observations.pixels(observation)):
            lead = image.shape[:-3]
            convolutions = ImageEncoder(self.sizes.depth, self.dtype, name=f"image_{number}")
            flat = convolutions(image.reshape((-1, *image.shape[-3:])))
            tokens.append(flat.reshape((*lead, -1)))
        return jnp.concatenate(tokens, axis=-1)


class ImageEncoder(nn.Module):
    """Convolutions with 2 x 2 max pooling: [N, H, W, C] in [0, 1] to [N, h, w, 4 depth].

    Attributes:
        depth: Factor of the channels.
        dtype: Type of the computation.
    """

    depth: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, image: Array) -> Array:
        height, width = image.shape[1:3]
        halvings = num_halvings(height, width)
        # Black borders make the sides divisible.
        borders = [(0, -side % 2**halvings) for side in (height, width)]
        x = jnp.pad(image, [(0, 0), *borders, (0, 0)]) - 0.5
        for factor in _FACTORS[:halvings]:
            x = convolution(factor * self.depth, self.dtype)(x)
            x = NormSiLU(self.dtype)(nn.max_pool(x, (2, 2), (2, 2)))
        return x


class Decoder(nn.Module):
    """Decoder of latent states to a reconstruction of the observation.

    Attributes:
        observations: Leaves of the observation.
        sizes: Sizes of all layers.
        dtype: Type of the computation.
    """

    observations: ModelObservations
    sizes: Sizes
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, latent: Latent) -> Decoded:
        sizes, observations = self.sizes, self.observations
        lead = latent.deter.shape[:-1]
        vector = jnp.zeros((*lead, 0))
        if observations.vectors:
            layers = Layers(_NUM_LAYERS, sizes.units, self.dtype, name="vector")
            vector = dense(observations.num_numbers, self.dtype, name="numbers")(layers(latent.features))
        flat = Latent(latent.deter.reshape((-1, sizes.deter)), latent.stoch.reshape((-1, sizes.stoch * sizes.classes)))
        images = [
            ImageDecoder(shape, sizes, self.dtype, name=f"image_{number}")(flat.deter, flat.stoch)
            for number, shape in enumerate(observations.image_shapes())
        ]
        shaped = tuple(image.reshape((*lead, *image.shape[1:])) for image in images)
        return Decoded(vector.astype(jnp.float32), shaped)


class ImageDecoder(nn.Module):
    """Transposed `ImageEncoder`: [N, D] and [N, S C] to [N, H, W, C] in [0, 1].

    A block-linear layer of the recurrent state and a small network of the samples make its last planes. Repeated pixels and
    convolutions follow.

    Attributes:
        shape: (H, W, C).
        sizes: Sizes of all layers.
        dtype: Type of the computation.
    """

    shape: tuple[int, int, int]
    sizes: Sizes
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, deter: Array, stoch: Array) -> Array:
        height, width, channels = self.shape
        halvings = num_halvings(height, width)
        depths = [factor * self.sizes.depth for factor in _FACTORS[:halvings]]
        rows, columns = (math.ceil(side / 2**halvings) for side in (height, width))
        blocks, size = math.gcd(self.sizes.blocks, depths[-1]), rows * columns * depths[-1]
        by_block = BlockDense(size, blocks, self.dtype, name="from_deter")(deter)
        # The blocks become channels: each has all places.
        by_block = by_block.reshape((-1, blocks, rows, columns, depths[-1] // blocks))
        from_deter = jnp.moveaxis(by_block, 1, -2).reshape((-1, rows, columns, depths[-1]))
        from_stoch = Layers(1, 2 * self.sizes.units, self.dtype, name="from_stoch")(stoch)
        from_stoch = dense(size, self.dtype, name="planes")(from_stoch).reshape(from_deter.shape)
        x = NormSiLU(self.dtype)(from_deter + from_stoch)
        for depth in reversed(depths[:-1]):
            x = NormSiLU(self.dtype)(convolution(depth, self.dtype)(double(x)))
        x = convolution(channels, self.dtype, name="pixels")(double(x))
        return nn.sigmoid(x.astype(jnp.float32))[:, :height, :width]


def convolution(features: int, dtype: DTypeName, name: str | None = None) -> nn.Conv:
    """Returns a convolution of kernel 5 that keeps the size of images."""
    return nn.Conv(features, _KERNEL, dtype=jnp.dtype(dtype), kernel_init=fan_in_init(), name=name)


def double(x: Array) -> Array:
    """Returns images [N, H, W, C] with each pixel repeated: [N, 2 H, 2 W, C]."""
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
