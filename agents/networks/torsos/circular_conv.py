"""Convolution around a circle: features of lidar that turn with what its rays meet.

Source: Baker et al. 2020 (arXiv:1909.07528), appendix B: lidar passes a circular convolution before anything else.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn

from agents.api import Array
from agents.networks.torsos.entity_sets import EntitySet
from envpool_bridge.errors import UserError

CHANNELS, WIDTH = 9, 3  # as SRL's code has them


class CircularConvolution(nn.Module):
    """Rays [..., N], evenly around, to [..., N * channels] float32; the last ray's neighbour is the first.

    Attributes:
        channels: of the output, for each ray.
        width: rays that one output sees, an odd number.
    """

    channels: int = CHANNELS
    width: int = WIDTH

    @nn.compact
    def __call__(self, rays: Array) -> Array:
        """Features of the rays."""
        x = nn.relu(nn.Conv(self.channels, (self.width,), padding="CIRCULAR", name="convolution")(rays[..., None]))
        return x.reshape((*rays.shape[:-1], rays.shape[-1] * self.channels))


def with_circles(names: Sequence[str], inputs: dict[str, Any]) -> dict[str, Any]:
    """Encoded leaves by name, those of `names` convolved; to be called within a module, where it makes submodules "circle/NAME".

    Args:
        names: of leaves that are rays.
        inputs: as `ObservationInputs.encode` gives them.

    Raises:
        UserError: there is no such leaf, or it is a set of entities.
    """
    for name in names:
        if not isinstance(inputs.get(name), Array) or isinstance(inputs[name], EntitySet):
            found = ", ".join(key for key, x in inputs.items() if not isinstance(x, EntitySet))
            raise UserError(
                f"expected circular to name leaves that are vectors of rays, got {name!r}: there are {found}"
            )
    convolved = {name: CircularConvolution(name=f"circle/{name}")(inputs[name]) for name in names}
    return {**inputs, **convolved}
