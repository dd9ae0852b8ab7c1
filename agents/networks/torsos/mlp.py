"""Dense layers."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import LayerOptions

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
    "elu": nn.elu,
}


class MLP(nn.Module):
    """Dense layers from [..., D] to [..., hidden_sizes[-1]]; orthogonal weights of gain sqrt(2), zero biases.

    Attributes:
        hidden_sizes: Size of each layer.
        layers: Options of every layer.
    """

    hidden_sizes: Sequence[int]
    layers: LayerOptions

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.hidden_sizes:
            x = nn.Dense(size, dtype=self.layers.dtype, kernel_init=nn.initializers.orthogonal(2**0.5))(x)
            x = activate(self.layers, x)
        return x


def activate(layers: LayerOptions, x: Array, name: str | None = None) -> Array:
    """Returns the activation of a dense layer's outputs [..., D], which a LayerNorm normalizes before if it is on.

    Args:
        layers: Options of the layer.
        x: Outputs of the layer.
        name: Name of the LayerNorm in the calling module; None: chosen by flax.
    """
    if layers.layer_norm:
        x = nn.LayerNorm(dtype=layers.dtype, name=name)(x)
    return ACTIVATIONS[layers.activation](x)
