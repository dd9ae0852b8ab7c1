"""The residual torso of IMPALA. Source: Espeholt et al. 2018 (arXiv:1802.01561), figure 3, right."""

from collections.abc import Sequence

import flax.linen as nn

from agents.api import Array
from agents.networks.torsos.mlp import MLP
from agents.networks.torsos.strided_conv import channels_last_unit, flatten_image


class ResidualBlock(nn.Module):
    """Residual block: x [N, H, W, C] plus two 3x3 convolutions of it.

    Attributes:
        features: C.
    """

    features: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        y = nn.Conv(self.features, (3, 3))(nn.relu(x))
        return x + nn.Conv(self.features, (3, 3))(nn.relu(y))


class ImpalaResNet(nn.Module):
    """Encoder of images [N, C, H, W] or [N, H, W, C] to [N, hidden_sizes[-1]]: three sections, dense layers.

    Attributes:
        hidden_sizes: Sizes of the final dense layers; (256,) in the paper.
        activation: Activation of the dense layers.
        channels: Channels of the sections.
    """

    hidden_sizes: Sequence[int] = (256,)
    activation: str = "relu"
    channels: Sequence[int] = (16, 32, 32)

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = channels_last_unit(image)
        for features in self.channels:
            x = nn.max_pool(nn.Conv(features, (3, 3))(x), (3, 3), (2, 2), "SAME")
            x = ResidualBlock(features)(ResidualBlock(features)(x))
        return MLP(self.hidden_sizes, self.activation)(flatten_image(nn.relu(x)))
