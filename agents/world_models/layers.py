"""Layers of a world model: dense and convolutional ones, each followed by a root-mean-square norm and SiLU."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import DTypeName

_EPSILON = 1e-4  # of norms


def fan_in_init(scale: float = 1.0) -> Any:
    """Returns the initializer of weights of deviation scale / sqrt(inputs), from a normal distribution cut at two deviations."""
    return nn.initializers.variance_scaling(max(scale, 1e-12) ** 2, "fan_in", "truncated_normal")


def dense(features: int, dtype: DTypeName, scale: float = 1.0, name: str | None = None) -> nn.Dense:
    """Returns a linear layer; `scale` 0 makes its initial outputs 0."""
    kernel_init = fan_in_init(scale) if scale else nn.initializers.zeros_init()
    return nn.Dense(features, dtype=jnp.dtype(dtype), kernel_init=kernel_init, name=name)


class BlockDense(nn.Module):
    """Linear layer whose matrix is block-diagonal: block g of the outputs depends only on block g of the inputs.

    Attributes:
        features: Size of the output, a multiple of `blocks`.
        blocks: G.
        dtype: Type of the computation.
    """

    features: int
    blocks: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [..., G * I] to [..., features]."""
        size, out = x.shape[-1] // self.blocks, self.features // self.blocks
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", batch_axis=0)
        kernel = self.param("kernel", init, (self.blocks, size, out), jnp.float32).astype(self.dtype)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32).astype(self.dtype)
        x = x.reshape((*x.shape[:-1], self.blocks, size)).astype(self.dtype)
        y = jnp.einsum("...gi,gio->...go", x, kernel)
        return y.reshape((*y.shape[:-2], self.features)) + bias


class NormSiLU(nn.Module):
    """SiLU of inputs [..., D] that are divided by their root mean square and multiplied by learned scales.

    Attributes:
        dtype: Type of the result; the mean square is float32.
    """

    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return nn.silu(nn.RMSNorm(_EPSILON, dtype=jnp.dtype(self.dtype), name="norm")(x))


class Layers(nn.Module):
    """Dense layers [..., D] to [..., units], each with `NormSiLU`.

    Attributes:
        num_layers: Number of layers.
        units: Size of each.
        dtype: Type of the computation.
    """

    num_layers: int
    units: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for _ in range(self.num_layers):
            x = NormSiLU(self.dtype)(dense(self.units, self.dtype)(x))
        return x


class Head(nn.Module):
    """Dense layers and a linear one: features [..., D] to float32 outputs [..., num_outputs].

    Attributes:
        num_layers: Number of layers before the last.
        units: Size of each.
        num_outputs: Size of the output.
        scale: Factor of the last layer's initial weights.
        dtype: Type of the computation.
    """

    num_layers: int
    units: int
    num_outputs: int
    scale: float = 1.0
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = Layers(self.num_layers, self.units, self.dtype)(x)
        return dense(self.num_outputs, self.dtype, self.scale, name="output")(x).astype(jnp.float32)
