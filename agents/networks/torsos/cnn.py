"""A convolutional torso of any layers, and the layers of DQN.

Sources: Mnih et al. 2015, Methods, "Model architecture"; Young & Tian 2019 (arXiv:1903.03176) for the default, 16@3/1.
"""

from collections.abc import Sequence

import flax.linen as nn

from agents.api import Array
from agents.networks.config import Convolution, DTypeName, LayerOptions
from agents.networks.torsos.mlp import MLP
from agents.networks.torsos.strided_conv import StridedConv, flatten_image
from envpool_bridge.errors import UserError

NATURE_CONVOLUTIONS: tuple[Convolution, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Layers of torso "nature_cnn", whose dense layer has 512 units in the paper."""


class CNN(nn.Module):
    """Encoder of scaled images [N, H, W, C] float32 to [N, hidden_sizes[-1]]: VALID convolutions, dense layers.

    Attributes:
        hidden_sizes: Sizes of the dense layers after the convolutions.
        layers: Options of the layers; the norm is that of the dense layers.
        convolutions: Output channels, kernel size and stride of each convolution.
    """

    hidden_sizes: Sequence[int]
    layers: LayerOptions
    convolutions: Sequence[Convolution]

    @nn.compact
    def __call__(self, image: Array) -> Array:
        x = image
        for number, (features, kernel, stride) in enumerate(self.convolutions):
            if kernel > min(x.shape[1:3]):
                raise UserError(
                    f"convolutions[{number}] has a kernel of {kernel} x {kernel}, but its input has {x.shape[1]} x {x.shape[2]} "
                    f"pixels (of an image {image.shape[1:]}): use smaller kernels, smaller strides or fewer layers"
                )
            x = nn.relu(_convolution(features, kernel, stride, self.layers.dtype)(x))
        return MLP(self.hidden_sizes, self.layers)(flatten_image(x))


def _convolution(features: int, kernel: int, stride: int, dtype: DTypeName) -> nn.Module:
    if kernel % stride == 0:
        return StridedConv(features, kernel, stride, dtype)  # faster on CPUs
    init = nn.initializers.orthogonal(2**0.5)
    return nn.Conv(features, (kernel, kernel), stride, "VALID", dtype=dtype, kernel_init=init)
