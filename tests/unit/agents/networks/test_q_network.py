"""Q-networks: shapes, streams, memory, masks and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.networks.q_network import QOptions, make_q_network
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec

SPEC = EnvSpec("test", ArraySpec((4,), "float32"), DiscreteSpec(3))
SMALL = NetworkConfig(hidden_sizes=(8, 8))
X = np.random.default_rng(0).normal(size=(5, 6, 4)).astype(np.float32)


PLAIN = QOptions()


def built(config, spec, options=PLAIN):
    net = make_q_network(config, spec, options)
    return net, jax.jit(net.init)(jax.random.key(0))


def num_parameters(config, spec, options):
    shapes = jax.eval_shape(make_q_network(config, spec, options).init, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_q_outputs_have_shape_actions_by_outputs():
    net = make_q_network(SMALL, SPEC, QOptions(num_outputs=7))
    params = jax.eval_shape(net.init, jax.random.key(0))
    assert jax.eval_shape(net.outputs, params, X, None).shape == (5, 6, 3, 7)
    assert net.num_actions == 3


def test_dueling_mean_over_actions_is_the_value():
    net, params = built(SMALL, SPEC, QOptions(num_outputs=2, dueling=True))
    head = params["head"]["params"]
    head["advantage"]["bias"] = head["advantage"]["bias"] + 5.0  # the same for all actions: takes nothing
    params["head"]["params"]["value"]["bias"] = jnp.array([10.0, -10.0])
    out = np.asarray(jax.jit(net.outputs)(params, X, None))
    np.testing.assert_allclose(out.mean(-2), np.broadcast_to([10.0, -10.0], (5, 6, 2)), atol=0.5)
    assert out.std(-2).max() > 0


def test_q_network_layers_match_hidden_sizes():
    network = NetworkConfig(torso="nature_cnn", hidden_sizes=(512,), activation="relu")
    # Mnih et al. 2015: 32@8x8x4, 64@4x4x32, 64@3x3x64, 3136 x 512, 512 x 3
    sizes = [8 * 8 * 4 * 32 + 32, 4 * 4 * 32 * 64 + 64, 3 * 3 * 64 * 64 + 64, 3136 * 512 + 512, 512 * 3 + 3]
    assert num_parameters(network, pixels(84), PLAIN) == sum(sizes)
    second_stream = 3136 * 512 + 512 + 512 + 1  # Wang et al. 2016
    assert num_parameters(network, pixels(84), QOptions(dueling=True)) == sum(sizes) + second_stream


def pixels(side):
    return EnvSpec("pixels", ArraySpec((4, side, side), "uint8", frames=4), DiscreteSpec(3))


def test_images_of_steps_and_rows_are_seen_each_by_itself():
    net, params = built(NetworkConfig(torso="nature_cnn", hidden_sizes=(8,)), pixels(36))
    images = np.random.default_rng(1).integers(0, 255, (2, 3, 4, 36, 36)).astype(np.uint8)
    outputs = jax.jit(net.outputs)
    together, one = outputs(params, images, None), outputs(params, images[1], None)
    np.testing.assert_allclose(together[1], one, rtol=1e-4, atol=1e-6)


def test_q_network_names_leaves_and_excludes_mask():
    spec = EnvSpec(
        "tree",
        {"arm": ArraySpec((2,), "float32"), "legal": ArraySpec((3,), "int8"), "mood": DiscreteSpec(5)},
        DiscreteSpec(3),
        action_mask=("legal",),
    )
    net = make_q_network(SMALL, spec, PLAIN)
    params = jax.eval_shape(net.init, jax.random.key(0))
    assert set(params["torso"]["params"]["torso"]["input"]) == {"bias", "kernel/arm", "kernel/mood"}
    observation = {
        "arm": np.ones((2, 2), np.float32),
        "legal": np.eye(2, 3, dtype=np.int8),
        "mood": np.zeros(2, np.int32),
    }
    assert jax.eval_shape(net.outputs, params, observation, None).shape == (2, 3, 1)
    assert net.legal(None, observation) is observation["legal"]


def test_recurrent_q_network_unroll_equals_steps():
    net, params = built(NetworkConfig(hidden_sizes=(8,), core="gru", core_size=8), SPEC)
    is_first = np.zeros((5, 6), bool)
    is_first[2, :3] = True
    state = jax.tree.map(lambda x: x + 0.3, net.initial_state(6))
    unrolled, last = jax.jit(net.unroll)(params, X, state, is_first, None)
    step = jax.jit(lambda *args: net.step(*args, None))
    for t in range(5):
        out, state = step(params, X[t], state, is_first[t])
        np.testing.assert_allclose(out, unrolled[t], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state, last, rtol=1e-4, atol=1e-6)
    fresh, _ = step(params, X[2], net.initial_state(6), np.zeros(6, bool))
    np.testing.assert_allclose(unrolled[2, :3], fresh[:3], rtol=1e-4, atol=1e-6)
    assert np.abs(unrolled[2, 3:] - fresh[3:]).max() > 1e-5
    with pytest.raises(TypeError, match="use `step` or `unroll`"):
        net.outputs(params, X[0], None)


def test_noise_differs_between_rows_and_layers():
    net, params = built(SMALL, SPEC, QOptions(dueling=True, noisy_sigma=0.5))
    same = np.tile(X[0, :1], (4, 1))
    outputs = jax.jit(net.outputs)
    keys = jax.random.split(jax.random.key(1), 4)
    noisy = outputs(params, same, keys)
    assert len(np.unique(noisy[:, 0, 0])) == 4
    np.testing.assert_allclose(noisy[1:3], outputs(params, same[:2], keys[1:3]), rtol=1e-4, atol=1e-6)


def test_validate_discrete_rejects_other_actions_by_name():
    many = EnvSpec("many", ArraySpec((4,), "float32"), MultiDiscreteSpec((2,), (3, 2), (0, 0)))
    with pytest.raises(UserError, match=r"many: .* expected one Discrete action, got action"):
        make_q_network(SMALL, many, QOptions())
