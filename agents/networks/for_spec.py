"""Network that fits the observations of an environment, for experiments on any environment."""

import dataclasses

from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import LARGEST_SMALL_IMAGE
from agents.networks.observation_scale import image_shape, is_image
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from envpool_bridge.spec.tree import items

_SMALLEST_BOARD, _LARGEST_BOARD = 3, 16  # fields per side


def network_for(spec: EnvSpec, vector: NetworkConfig) -> NetworkConfig:
    """Returns the network of an environment: convolutions where a leaf of the observation is an image, otherwise `vector`.

    Images of more than 35 pixels per side pass through the convolutions of Mnih et al. 2015. Images and boards of at most 16 pass
    through that of Young & Tian 2019, others through those of Espeholt et al. 2018.

    Args:
        spec: Spec of the environment.
        vector: Network of observations without images.
    """
    leaves = [leaf for path, leaf in items(spec.observation) if not path or path != spec.action_mask]
    images = [leaf for leaf in leaves if isinstance(leaf, ArraySpec) and is_image(leaf)]
    if not images:
        return vector
    if all(min(image_shape(leaf)[:2]) > LARGEST_SMALL_IMAGE for leaf in images):
        torso, size = "nature_cnn", 512
    elif all(map(_is_board, images)):
        torso, size = "cnn", 128
    else:
        torso, size = "impala_resnet", 256
    return dataclasses.replace(vector, torso=torso, hidden_sizes=(size,), activation="relu")


def _is_board(leaf: ArraySpec) -> bool:
    sides = image_shape(leaf)[:2]
    return leaf.frames == 1 and min(sides) >= _SMALLEST_BOARD and max(sides) <= _LARGEST_BOARD
