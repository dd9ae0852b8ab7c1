"""A dense layer over inputs that go by name."""

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array


class NamedDense(nn.Module):
    """A dense layer over the concatenation of its inputs [..., D_i], whose weights are kept by the name of the input.

    An environment whose leaves change their names, or come in another order, then finds no weights or its own, and never those
    of another leaf. Weights are orthogonal of gain sqrt(2) for each input by itself, so that a small one is not drowned. What is
    the same along a leading axis comes with 1 there, and is multiplied once.

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
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, name in enumerate(names):
            groups.setdefault(inputs[name].shape[:-1], []).append(place)
        outputs = [
            jnp.concatenate([inputs[names[place]] for place in places], axis=-1)
            @ jnp.concatenate([kernels[place] for place in places])
            for places in groups.values()
        ]
        return sum(outputs[1:], outputs[0]) + bias
