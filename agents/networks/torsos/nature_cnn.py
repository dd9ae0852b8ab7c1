"""The convolutional torso of DQN. Source: Mnih et al. 2015, Methods, "Model architecture"."""

from collections.abc import Sequence

import flax.linen as nn

from agents.api import Array
from agents.networks.config import LayerOptions
from agents.networks.torsos.mlp import MLP
from agents.networks.torsos.strided_conv import StridedConv, channels_last_unit, flatten_image


class NatureCNN(nn.Module):
    """Encoder of images [N, C, H, W] or [N, H, W, C] to [N, hidden_sizes[-1]]: convolutions 32@8/4, 64@4/2, 64@3/1, dense layers.

    Attributes:
        hidden_sizes: Sizes of the dense layers after the convolutions; (512,) in the paper.
        layers: Options of the layers; the activation and the norm are those of the dense layers.
    """

    hidden_sizes: Sequence[int] = (512,)
    layers: LayerOptions = LayerOptions("relu")

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = channels_last_unit(image)
        for features, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(StridedConv(features, kernel, stride, self.layers.dtype)(x))
        return MLP(self.hidden_sizes, self.layers)(flatten_image(x))
