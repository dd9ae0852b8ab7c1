"""The configurable convolutional torso against XLA's convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import LayerOptions, NetworkConfig
from agents.networks.team_state import memoryless_config
from agents.networks.torsos.cnn import CNN
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec


@pytest.mark.parametrize("convolutions", [((16, 3, 1),), ((4, 3, 2), (5, 2, 1)), ((3, 4, 2), (6, 3, 3), (2, 1, 1))])
def test_cnn_equals_convolutions_of_xla(convolutions):
    image = np.random.default_rng(0).random((5, 12, 11, 3), np.float32)
    torso = CNN((7,), LayerOptions("relu"), convolutions)
    params = torso.init(jax.random.key(0), image)
    x = image
    layers = dict(params["params"])
    dense = layers.pop("MLP_0")["Dense_0"]
    # flax numbers modules of each class apart.
    counts = {"StridedConv": 0, "Conv": 0}
    for _, kernel, stride in convolutions:
        kind = "StridedConv" if kernel % stride == 0 else "Conv"
        layer = layers.pop(f"{kind}_{counts[kind]}")
        counts[kind] += 1
        x = jax.lax.conv_general_dilated(
            x, layer["kernel"], (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = np.maximum(x + layer["bias"], 0.0)
    assert not layers
    expected = np.maximum(x.reshape(5, -1) @ dense["kernel"] + dense["bias"], 0.0)
    np.testing.assert_allclose(torso.apply(params, image), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "got"), [((6, 7, 2), "2 x 2"), ((6, 20, 2), "2 x 9"), ((20, 6, 2), "9 x 2")])
def test_kernel_larger_than_its_input_is_rejected(shape, got):
    spec = EnvSpec("Any", ArraySpec(shape, "float32"), DiscreteSpec(2))
    config = NetworkConfig("cnn", convolutions=((8, 4, 2), (8, 3, 1)))
    with pytest.raises(UserError, match=rf"convolutions\[1\] has a kernel of 3 x 3, but its input has {got} pixels"):
        jax.eval_shape(make_actor_critic(config, spec).init, jax.random.key(0))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"convolutions": ()}, "at least one: got"),
        ({"convolutions": ((8, 3, 0),)}, "positive"),
        ({"convolutions": ((8, 3),)}, "of each layer"),
        ({"convolutions": (8, 3, 1)}, "of each layer"),
        ({"convolutions": ((8, 3.0, 1),)}, "integers"),
        ({"torso": "mlp", "convolutions": ((8, 3, 1),)}, "those of torso 'cnn'"),
    ],
)
def test_bad_convolutions_are_rejected(settings, says):
    with pytest.raises(UserError, match=says):
        NetworkConfig(**{"torso": "cnn", **settings})


def test_named_images_and_vectors_share_the_dense_layers():
    observation = {"board": ArraySpec((6, 7, 2), "float32"), "turn": ArraySpec((1,), "float32")}
    spec = EnvSpec("Any", observation, DiscreteSpec(2))
    network = make_actor_critic(NetworkConfig("cnn", (16,), convolutions=((4, 3, 1),)), spec)
    params = network.init(jax.random.key(0))
    kernels = [leaf.shape for leaf in jax.tree.leaves(params) if jnp.ndim(leaf) == 4]
    assert kernels == [(3, 3, 2, 4)]


def test_a_team_state_of_vectors_needs_no_convolutions():
    spec = EnvSpec("Any", {"state": ArraySpec((5,), "float32")}, DiscreteSpec(2))
    config = memoryless_config(NetworkConfig("cnn", convolutions=((8, 2, 1),)), spec)
    assert (config.torso, config.convolutions) == ("mlp", NetworkConfig.convolutions)
