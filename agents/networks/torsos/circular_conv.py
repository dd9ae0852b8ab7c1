"""Circular convolution: features of lidar rays that rotate with the input.

Source: Baker et al. 2020 (arXiv:1909.07528), appendix B: lidar passes through a circular convolution first.
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn

from agents.api import Array
from agents.networks.config import DTypeName
from agents.networks.torsos.entity_sets import EntitySet
from envpool_bridge.errors import UserError

CHANNELS, WIDTH = 9, 3  # as in SRL's code


class CircularConvolution(nn.Module):
    """Convolution of evenly spaced rays [..., N] to [..., N * channels]; the last ray is adjacent to the first.

    Attributes:
        channels: Output channels for each ray.
        width: Number of rays for one output, odd.
        dtype: Type of the computation.
    """

    channels: int = CHANNELS
    width: int = WIDTH
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, rays: Array) -> Array:
        convolution = nn.Conv(self.channels, (self.width,), padding="CIRCULAR", dtype=self.dtype, name="convolution")
        x = nn.relu(convolution(rays[..., None]))
        return x.reshape((*rays.shape[:-1], rays.shape[-1] * self.channels))


def is_leaf_called(name: str, key: str) -> bool:
    """Returns whether a name means the leaf `key`: "lidar" also means "observation/lidar" or "team/0/lidar"."""
    return key == name or key.endswith(f"/{name}")


def with_circles(names: Sequence[str], inputs: dict[str, Any], dtype: DTypeName = "float32") -> dict[str, Any]:
    """Returns encoded leaves by name, those of `names` convolved. A calling module gets submodules "circle/KEY".

    Args:
        names: Names of leaves of rays, as in `is_leaf_called`.
        inputs: Result of `ObservationInputs.encode`.
        dtype: Type of the computation.

    Raises:
        UserError: If there is no such leaf, or it is a set of entities.
    """
    vectors = {key: x for key, x in inputs.items() if isinstance(x, Array) and not isinstance(x, EntitySet)}
    chosen: list[str] = []
    for name in names:
        matches = [key for key in vectors if is_leaf_called(name, key)]
        if not matches:
            raise UserError(
                f"expected circular to name leaves that are vectors of rays, got {name!r}: the vectors are {', '.join(vectors)}"
            )
        chosen += matches
    convolved = {key: CircularConvolution(dtype=dtype, name=f"circle/{key}")(inputs[key]) for key in chosen}
    return {**inputs, **convolved}
