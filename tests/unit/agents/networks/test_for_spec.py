"""The network that experiments on any environment choose."""

import jax
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.for_spec import network_for
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

VECTOR = NetworkConfig(hidden_sizes=(7,), activation="silu", core="lstm")


def torso_of(observation, action_mask=()):
    return network_for(EnvSpec("Any", observation, DiscreteSpec(2), action_mask=action_mask), VECTOR).torso


def test_network_for_vectors_is_the_given_one():
    assert network_for(EnvSpec("Any", ArraySpec((4,), "float32"), DiscreteSpec(2)), VECTOR) is VECTOR


@pytest.mark.parametrize(
    ("shape", "torso"),
    [
        ((84, 84, 3), "nature_cnn"),
        ((4, 36, 36), "nature_cnn"),
        ((10, 10, 6), "cnn"),
        ((16, 3, 2), "cnn"),
        ((17, 16, 2), "impala_resnet"),
        ((2, 8, 4), "impala_resnet"),
        ((3, 20, 20), "impala_resnet"),
        ((4, 84, 84, 3), "nature_cnn"),
        ((4, 3, 84, 84), "nature_cnn"),
        ((9, 9), "mlp"),
    ],
)
def test_network_for_images_depends_on_their_size(shape, torso):
    assert torso_of(ArraySpec(shape, "uint8")) == torso
    small = ArraySpec((7, 7, 3), "uint8")
    assert torso_of({"x": ArraySpec(shape, "uint8"), "y": small}) == (
        "cnn" if torso in ("cnn", "mlp") else "impala_resnet"
    )


@pytest.mark.parametrize(
    "shape", [(10, 10, 6), (16, 3, 2), (17, 16, 2), (2, 8, 4), (3, 20, 20), (36, 36, 1), (4, 36, 36, 3)]
)
def test_network_for_an_image_can_be_made(shape):
    spec = EnvSpec("Any", ArraySpec(shape, "uint8"), DiscreteSpec(2))
    network = make_actor_critic(network_for(spec, VECTOR), spec)
    jax.eval_shape(network.init, jax.random.key(0))


def test_stacked_images_are_no_boards():
    assert torso_of(ArraySpec((4, 10, 2), "uint8", frames=4)) == "impala_resnet"


def test_network_for_images_keeps_the_core():
    network = network_for(EnvSpec("Any", ArraySpec((84, 84, 3), "uint8"), DiscreteSpec(2)), VECTOR)
    assert (network.hidden_sizes, network.core) == ((512,), "lstm")


def test_network_for_skips_an_action_mask():
    mask = ArraySpec((2, 2, 2), "int8", 0.0, 1.0)
    assert torso_of({"mask": mask, "x": ArraySpec((3,), "float32")}, ("mask",)) == "mlp"
