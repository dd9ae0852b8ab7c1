"""Torso of encoded observations: of one array, or of several leaves by name."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import NetworkConfig, is_own_torso
from agents.networks.observation_scale import image_values
from agents.networks.torsos.attention_torso import EntityTorso
from agents.networks.torsos.circular_conv import with_circles
from agents.networks.torsos.cnn import CNN, NATURE_CONVOLUTIONS
from agents.networks.torsos.entity_sets import EntitySet
from agents.networks.torsos.impala_resnet import ImpalaResNet
from agents.networks.torsos.mlp import MLP, activate
from agents.networks.torsos.named_dense import NamedDense
from agents.networks.torsos.own_torso import make_own_torso, validate_features
from envpool_bridge.spec.specs import ArraySpec

Images = tuple[tuple[str, ArraySpec], ...]
TORSOS: dict[str, Any] = {
    "mlp": MLP,
    "nature_cnn": partial(CNN, convolutions=NATURE_CONVOLUTIONS),
    "impala_resnet": ImpalaResNet,
    "cnn": CNN,
}
"""Torsos of one array."""


def apply_torso(config: NetworkConfig, images: Images, x: Any, hidden_sizes: tuple[int, ...] | None = None) -> Array:
    """Returns features [..., hidden_sizes[-1]] float32. A calling module gets the submodule "torso"; flax names an own torso.

    Args:
        config: Configuration of the network.
        images: Names and specs of the image leaves.
        x: Result of `ObservationInputs.encode`.
        hidden_sizes: Sizes of the dense layers of a torso of one array; None: those of the configuration.
    """
    if isinstance(x, EntitySet):
        x = {"": x}
    if config.circular:
        x = with_circles(config.circular, x if isinstance(x, dict) else {"": x}, config.dtype)
    torso = _make_torso(config, images, x, config.hidden_sizes if hidden_sizes is None else hidden_sizes)

    def call(torso: nn.Module, x: Any) -> Array:
        return torso(_with_scaled_images(images, x))  # bytes until here: a rematerialized torso keeps its input

    features = (nn.remat(call) if config.remat else call)(torso, x)
    if is_own_torso(config.torso):
        validate_features(config, features)
    return features.astype(jnp.float32)


def _with_scaled_images(images: Images, x: Any) -> Any:
    if not isinstance(x, dict):
        return image_values(images[0][1], x) if images else x
    return x | {name: image_values(leaf, x[name]) for name, leaf in images}


def _make_torso(config: NetworkConfig, images: Images, x: Any, hidden_sizes: tuple[int, ...]) -> nn.Module:
    if is_own_torso(config.torso):
        return make_own_torso(config)
    if isinstance(x, dict) and any(isinstance(leaf, EntitySet) for leaf in x.values()):
        return EntityTorso(config.hidden_sizes, config.layers, config.entity_heads, name="torso")
    if isinstance(x, dict):
        return NamedTorso(config, images, name="torso")
    return _torso_of_one_array(config, hidden_sizes, "torso")


def _torso_of_one_array(config: NetworkConfig, hidden_sizes: tuple[int, ...], name: str) -> nn.Module:
    options = {"convolutions": config.convolutions} if config.torso == "cnn" else {}
    return TORSOS[config.torso](hidden_sizes, config.layers, **options, name=name)


class NamedTorso(nn.Module):
    """Encoder of named leaves to [..., hidden_sizes[-1]]: separate convolutions for each image, then dense layers over all leaves.

    Attributes:
        config: Configuration of the network.
        images: Names and specs of the image leaves.
    """

    config: NetworkConfig
    images: Images

    @nn.compact
    def __call__(self, inputs: dict[str, Array]) -> Array:
        config, encoded = self.config, dict(inputs)
        for name, _ in self.images:
            # Without dense layers: those follow the concatenation.
            convolutions = _torso_of_one_array(config, (), f"image/{name}")
            encoded[name] = convolutions(encoded[name])
        x = activate(config.layers, NamedDense(config.hidden_sizes[0], config.dtype, name="input")(encoded))
        return MLP(config.hidden_sizes[1:], config.layers)(x)
