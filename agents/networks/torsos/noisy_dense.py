"""A dense layer whose weights carry learned noise. Source: Fortunato et al. 2018 (arXiv:1706.10295), section 3."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import DTypeName


class NoisyDense(nn.Module):
    """y = (W + S * (f(e) f(e')^T)) x + b + s * f(e'), with factorized Gaussian noise e, e' and f(e) = sign(e) sqrt(|e|).

    Attributes:
        features: Size of the output.
        sigma: sigma_0 of the paper: initial deviations are sigma / sqrt(inputs).
        dtype: Type of the computation.
    """

    features: int
    sigma: float = 0.5
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array, keys: Array | None) -> Array:
        """Maps [..., D] to [..., features].

        Args:
            x: Inputs.
            keys: Typed keys (consumed): one for all inputs, or [B] for x [..., B, D] and separate noise of each row. None: use the
                mean weights without noise.
        """
        size = x.shape[-1]
        bound = size**-0.5

        def mean(key: Array, shape: tuple[int, ...]) -> Array:
            return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

        deviation = nn.initializers.constant(self.sigma * bound)
        kernel = self.param("kernel", mean, (size, self.features))
        bias = self.param("bias", mean, (self.features,))
        kernel_deviation = self.param("kernel_deviation", deviation, (size, self.features), jnp.float32)
        bias_deviation = self.param("bias_deviation", deviation, (self.features,), jnp.float32)
        trained = (kernel, bias, kernel_deviation, bias_deviation)
        x, kernel, bias, kernel_deviation, bias_deviation = (value.astype(self.dtype) for value in (x, *trained))
        y = x @ kernel + bias
        if keys is None:
            return y
        noise = scaled_noise(keys, 0, size), scaled_noise(keys, 1, self.features)
        inward, outward = (value.astype(self.dtype) for value in noise)
        # Multiplied from both sides, so noise of each row needs no matrix of each row.
        return y + ((x * inward) @ kernel_deviation) * outward + bias_deviation * outward


def fold(keys: Array, number: int) -> Array:
    """Returns separate keys for the `number`-th of several uses, of the shape of `keys`, () or [B]."""
    return jax.random.fold_in(keys, number) if keys.ndim == 0 else jax.vmap(lambda key: fold(key, number))(keys)


def scaled_noise(keys: Array, number: int, size: int) -> Array:
    """Returns f(e) of standard normal e: [size] for one key, [B, size] for keys [B]. `number` separates draws from one key."""

    def draw(key: Array) -> Array:
        noise = jax.random.normal(jax.random.fold_in(key, number), (size,))
        return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))

    return draw(keys) if keys.ndim == 0 else jax.vmap(draw)(keys)
