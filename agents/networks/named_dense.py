"""A dense layer over inputs that go by name."""

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array


class NamedDense(nn.Module):
    """A dense layer over the concatenation of its inputs [..., D_i], whose weights are kept by the name of the input.

    An environment whose leaves change their names, or come in another order, then finds no weights or its own, and never those
    of another leaf. Weights are orthogonal of gain sqrt(2) for each input by itself, so that a small one is not drowned.

    Attributes:
        features: size of the output.
    """

    features: int

    @nn.compact
    def __call__(self, inputs: dict[str, Array]) -> Array:
        """[..., features]."""
        init = nn.initializers.orthogonal(2**0.5)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
        names = sorted(inputs)
        kernels = [self.param(f"kernel/{name}", init, (inputs[name].shape[-1], self.features)) for name in names]
        x = jnp.concatenate([inputs[name] for name in names], axis=-1)
        return x @ jnp.concatenate(kernels) + bias
