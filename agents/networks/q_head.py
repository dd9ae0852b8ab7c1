"""Head of a Q-network: one stream of layers or two (dueling), optionally noisy."""

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import DTypeName, LayerOptions
from agents.networks.torsos.mlp import activate
from agents.networks.torsos.noisy_dense import NoisyDense, fold


class QHead(nn.Module):
    """Features [..., D] to [..., A, K].

    Attributes:
        num_actions: A.
        num_outputs: K, outputs of each action.
        hidden_size: Size of the hidden layer of each stream.
        layers: Options of the hidden layer.
        dueling: Use one stream for the state's value and one for the advantages of actions, minus their mean over actions
            (Wang et al. 2016, arXiv:1511.06581, eq. 9).
        noisy_sigma: Use `NoisyDense` with this sigma for all layers; None: no noise.
    """

    num_actions: int
    num_outputs: int
    hidden_size: int
    layers: LayerOptions
    dueling: bool
    noisy_sigma: float | None

    @nn.compact
    def __call__(self, features: Array, noise: Array | None) -> Array:
        """Returns the outputs, float32; `noise` is the `keys` of `NoisyDense`."""
        outputs = self._stream("advantage", 0, self.num_actions * self.num_outputs, features, noise)
        outputs = outputs.reshape((*outputs.shape[:-1], self.num_actions, self.num_outputs))
        if not self.dueling:
            return outputs
        value = self._stream("value", 1, self.num_outputs, features, noise)
        return value[..., None, :] + outputs - jnp.mean(outputs, axis=-2, keepdims=True)

    def _stream(self, name: str, number: int, size: int, x: Array, noise: Array | None) -> Array:
        dtype, hidden_noise = self.layers.dtype, _fold(noise, 2 * number)
        hidden = self._dense(f"{name}_hidden", self.hidden_size, 2**0.5, x, hidden_noise, dtype)
        hidden = activate(self.layers, hidden, name=f"{name}_norm")
        # Small initial outputs: values start near 0, distributions near uniform.
        return self._dense(name, size, 0.01, hidden, _fold(noise, 2 * number + 1))

    def _dense(
        self, name: str, size: int, gain: float, x: Array, noise: Array | None, dtype: DTypeName = "float32"
    ) -> Array:
        if self.noisy_sigma is None:
            return nn.Dense(size, dtype=dtype, kernel_init=nn.initializers.orthogonal(gain), name=name)(x)
        return NoisyDense(size, self.noisy_sigma, dtype, name=name)(x, noise)


def _fold(noise: Array | None, number: int) -> Array | None:
    return None if noise is None else fold(noise, number)
