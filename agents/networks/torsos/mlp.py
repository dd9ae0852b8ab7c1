"""Dense layers."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": nn.relu, "silu": nn.silu}


class MLP(nn.Module):
    """Dense layers from [..., D] to [..., hidden_sizes[-1]]; orthogonal weights of gain sqrt(2), zero biases.

    Attributes:
        hidden_sizes: Size of each layer.
        activation: Activation after every layer.
    """

    hidden_sizes: Sequence[int]
    activation: str = "tanh"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.hidden_sizes:
            x = ACTIVATIONS[self.activation](nn.Dense(size, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        return x
