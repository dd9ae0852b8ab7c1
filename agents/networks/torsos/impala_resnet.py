"""The residual torso of IMPALA. Source: Espeholt et al. 2018 (arXiv:1802.01561), figure 3, right."""

from collections.abc import Sequence

import flax.linen as nn

from agents.api import Array
from agents.networks.config import DTypeName, LayerOptions
from agents.networks.torsos.mlp import MLP
from agents.networks.torsos.strided_conv import flatten_image


class ResidualBlock(nn.Module):
    """Residual block: x [N, H, W, C] plus two 3x3 convolutions of it.

    Attributes:
        features: C.
        dtype: Type of the computation.
    """

    features: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = nn.Conv(self.features, (3, 3), dtype=self.dtype)(nn.relu(x))
        return x + nn.Conv(self.features, (3, 3), dtype=self.dtype)(nn.relu(y))


class ImpalaResNet(nn.Module):
    """Encoder of scaled images [N, H, W, C] float32 to [N, hidden_sizes[-1]]: three sections, dense layers.

    Attributes:
        hidden_sizes: Sizes of the final dense layers; (256,) in the paper.
        layers: Options of the layers; the activation and the norm are those of the dense layers.
        channels: Channels of the sections.
    """

    hidden_sizes: Sequence[int] = (256,)
    layers: LayerOptions = LayerOptions("relu")
    channels: Sequence[int] = (16, 32, 32)

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x, dtype = image, self.layers.dtype
        for features in self.channels:
            x = nn.max_pool(nn.Conv(features, (3, 3), dtype=dtype)(x), (3, 3), (2, 2), "SAME")
            x = ResidualBlock(features, dtype)(ResidualBlock(features, dtype)(x))
        return MLP(self.hidden_sizes, self.layers)(flatten_image(nn.relu(x)))
