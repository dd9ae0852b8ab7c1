"""From encoded observations to features: one array through one torso, or several leaves by name."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import NetworkConfig
from agents.networks.impala_resnet import ImpalaResNet
from agents.networks.mlp import ACTIVATIONS, MLP
from agents.networks.nature_cnn import NatureCNN

_IMAGE_TORSOS: dict[str, Any] = {"nature_cnn": NatureCNN, "impala_resnet": ImpalaResNet}


def apply_torso(config: NetworkConfig, images: tuple[str, ...], x: Any) -> Array:
    """Features [..., hidden_sizes[-1]]; to be called within a module, where it makes the submodule "torso".

    Args:
        config: of the network.
        images: names of the leaves that are images.
        x: as `ObservationInputs.encode` gives it.
    """
    if isinstance(x, dict):
        return NamedTorso(config, images, name="torso")(x)
    modules = {"mlp": MLP, **_IMAGE_TORSOS}
    return modules[config.torso](config.hidden_sizes, config.activation, name="torso")(x)


class NamedTorso(nn.Module):
    """Leaves by name to features [..., hidden_sizes[-1]]: images through convolutions of their own, then dense layers over all.

    Attributes:
        config: of the network.
        images: names of the leaves that are images.
    """

    config: NetworkConfig
    images: tuple[str, ...]

    @nn.compact
    def __call__(self, inputs: dict[str, Array]) -> Array:
        """Features of the leaves."""
        config, encoded = self.config, dict(inputs)
        for name in self.images:
            # Without dense layers of its own: those come after the leaves are joined.
            convolutions = _IMAGE_TORSOS[config.torso]((), config.activation, name=f"image/{name}")
            encoded[name] = convolutions(encoded[name])
        x = ACTIVATIONS[config.activation](NamedDense(config.hidden_sizes[0], name="input")(encoded))
        return MLP(config.hidden_sizes[1:], config.activation)(x)


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
