"""A strided convolution as matrix products, for which CPUs have a fast path.

A VALID convolution whose stride divides its kernel equals space-to-depth by the stride, a few shifted slices, and a matrix product.
CPUs compute it in chunks of images (`block_conv`); other devices, and stride 1, in one product of all patches.
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import DTypeName
from agents.networks.torsos.block_conv import block_conv, block_conv_gradient
from envpool_bridge.errors import UserError


def strided_conv(x: Array, kernel: Array, stride: int) -> Array:
    """Returns the VALID convolution of [N, H, W, C] with [K, K, C, F] at `stride`, where `stride` divides K: [N, H', W', F]."""
    size = kernel.shape[0]
    if size % stride:
        raise UserError(f"stride must divide the kernel: got stride {stride} and kernel {size}")
    # Pixels that no kernel reads are cut off.
    rows, columns = ((length - size) // stride * stride + size for length in x.shape[1:3])
    x = x[:, :rows, :columns]
    return _patch_conv(x, kernel, stride) if stride == 1 else _conv(x, kernel, stride)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv(x: Array, kernel: Array, stride: int) -> Array:
    if not isinstance(x.shape[0], int):  # a symbol: an exported program takes any number of images
        return _patch_conv(x, kernel, stride)
    compute = {"cpu": partial(block_conv, stride=stride), "default": partial(_patch_conv, stride=stride)}
    return jax.lax.platform_dependent(x, kernel, **compute)


def _conv_forward(x: Array, kernel: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return _conv(x, kernel, stride), (x, kernel)


def _conv_backward(stride: int, inputs: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    def backward_of_patches(x: Array, kernel: Array, gradient: Array) -> tuple[Array, Array]:
        return jax.vjp(partial(_patch_conv, stride=stride), x, kernel)[1](gradient)

    compute = {"cpu": partial(block_conv_gradient, stride=stride), "default": backward_of_patches}
    return jax.lax.platform_dependent(*inputs, gradient, **compute)


_conv.defvjp(_conv_forward, _conv_backward)


def _patch_conv(x: Array, kernel: Array, stride: int) -> Array:
    size, _, channels, features = kernel.shape
    batch, height, width, _ = x.shape
    out_h, out_w, blocks = (height - size) // stride + 1, (width - size) // stride + 1, size // stride
    # Blocks of stride x stride pixels become channels.
    rows, columns = out_h + blocks - 1, out_w + blocks - 1
    x = x.reshape(batch, rows, stride, columns, stride, channels).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(batch, rows, columns, stride * stride * channels)
    shifted = [x[:, i : i + out_h, j : j + out_w] for i in range(blocks) for j in range(blocks)]
    patches = jnp.concatenate(shifted, axis=-1)
    kernel = kernel.reshape(blocks, stride, blocks, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return patches @ kernel.reshape(-1, features)


class StridedConv(nn.Module):
    """`strided_conv` with a bias; parameters have the names and shapes of flax's Conv.

    Attributes:
        features: F, output channels.
        kernel_size: K.
        stride: Stride; divides K.
        dtype: Type of the computation.
    """

    features: int
    kernel_size: int
    stride: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [N, H, W, C] to [N, H', W', F]."""
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.orthogonal(2**0.5), shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
        x, kernel, bias = (value.astype(self.dtype) for value in (x, kernel, bias))
        return strided_conv(x, kernel, self.stride) + bias


def flatten_image(x: Array) -> Array:
    """Reshapes [N, ...] to [N, D]."""
    return jax.lax.collapse(x, 1)
