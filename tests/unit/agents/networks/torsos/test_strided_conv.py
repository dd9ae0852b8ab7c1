"""Convolutions as matrix products against those of XLA: values and gradients."""

import jax
import numpy as np
import pytest

from agents.networks.torsos import strided_conv as module
from agents.networks.torsos.block_conv import block_conv
from agents.networks.torsos.strided_conv import strided_conv
from envpool_bridge.errors import UserError


def convolution_of_xla(x, weights, stride):
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weights, (stride, stride), "VALID", dimension_numbers=dimensions)


def make_inputs(batch, size, kernel):
    x = jax.random.normal(jax.random.key(0), (batch, size, size + 1, 3))
    return x, jax.random.normal(jax.random.key(1), (kernel, kernel, 3, 5))


@pytest.mark.parametrize(("size", "kernel", "stride"), [(20, 8, 4), (9, 4, 2), (7, 3, 1), (21, 4, 4)])
@pytest.mark.parametrize("batch", [1, 5, 33])
def test_strided_conv_equals_xla(batch, size, kernel, stride):
    x, weights = make_inputs(batch, size, kernel)

    def result_and_gradients(convolution):
        def loss(x, weights):
            y = convolution(x, weights, stride)
            return (y**2).sum(), y

        gradients, y = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(x, weights)
        return y, *gradients

    ours, expected = result_and_gradients(strided_conv), result_and_gradients(convolution_of_xla)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * abs(other).max())


def test_strided_conv_maps_over_members():
    x, weights = make_inputs(2, 8, 4)
    members = jax.numpy.stack([weights, 2 * weights])
    each = jax.vmap(lambda weights: strided_conv(x, weights, 2))(members)
    np.testing.assert_allclose(each[1], 2 * convolution_of_xla(x, weights, 2), rtol=1e-4, atol=1e-4)


def test_block_conv_equals_the_one_of_other_devices():
    x, weights = make_inputs(4, 8, 4)
    x = x[:, :, :8]
    np.testing.assert_allclose(block_conv(x, weights, 2), module._patch_conv(x, weights, 2), rtol=1e-5, atol=1e-5)


def test_strided_conv_rejects_other_strides():
    with pytest.raises(UserError, match="stride must divide the kernel: got stride 2 and kernel 3"):
        strided_conv(*make_inputs(1, 8, 3), 2)
