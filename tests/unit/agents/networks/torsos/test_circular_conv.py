"""Convolution around a circle, against a loop."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.phasic import make_phasic
from agents.networks.torsos.circular_conv import CircularConvolution, with_circles
from agents.networks.torsos.entity_sets import EntitySet
from agents.sac import SACConfig, make_sac
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec


class Inputs(nn.Module):
    names: tuple[str, ...]

    @nn.compact
    def __call__(self, inputs):
        return with_circles(self.names, inputs)


@pytest.fixture(scope="module")
def convolved():
    rays = jax.random.normal(jax.random.key(1), (2, 3, 8))
    module = CircularConvolution(channels=4)
    params = jax.jit(module.init)(jax.random.key(0), rays)
    params = jax.tree.map(lambda p: p + 0.1, params)  # biases too
    return rays, params, jax.jit(module.apply)


def test_circular_convolution_wraps_around(convolved):
    rays, params, apply = convolved
    got = np.asarray(apply(params, rays)).reshape(2, 3, 8, 4)
    kernel = np.asarray(params["params"]["convolution"]["kernel"])  # [3, 1, 4]
    bias = np.asarray(params["params"]["convolution"]["bias"])
    for place in np.ndindex(2, 3):
        for ray in range(8):
            around = [float(rays[(*place, (ray + shift) % 8)]) for shift in (-1, 0, 1)]
            expected = np.maximum(sum(x * kernel[k, 0] for k, x in enumerate(around)) + bias, 0.0)
            np.testing.assert_allclose(got[(*place, ray)], expected, rtol=1e-5, atol=1e-6)


def test_turned_rays_give_turned_features(convolved):
    rays, params, apply = convolved
    turned = apply(params, jnp.roll(rays, 3, axis=-1)).reshape(2, 3, 8, 4)
    np.testing.assert_allclose(turned, jnp.roll(apply(params, rays).reshape(2, 3, 8, 4), 3, axis=2), atol=1e-6)


def test_named_leaves_are_convolved_and_others_are_left_alone():
    inputs = {
        "lidar": jnp.ones((2, 5)),
        "self": jnp.ones((2, 4)),
        "boxes": EntitySet(jnp.ones((2, 3, 2)), jnp.ones((2, 3), bool)),
    }
    found, params = jax.jit(Inputs(("lidar",)).init_with_output)(jax.random.key(0), inputs)
    assert found["lidar"].shape == (2, 45)
    assert found["self"].shape == (2, 4)
    assert set(params["params"]) == {"circle/lidar"}


def test_a_name_is_also_that_of_a_branch():
    inputs = {"team/0/lidar": jnp.ones((2, 5)), "team/1/lidar": jnp.ones((2, 5)), "team/0/x": jnp.ones((2, 3))}
    found, params = jax.jit(Inputs(("lidar",)).init_with_output)(jax.random.key(0), inputs)
    assert [found[key].shape[1] for key in inputs] == [45, 45, 3]
    assert set(params["params"]) == {"circle/team/0/lidar", "circle/team/1/lidar"}


def test_critics_of_sac_convolve_the_leaves_of_their_observation():
    leaves = {"lidar": ArraySpec((6,), "float32"), "x": ArraySpec((2,), "float32")}
    spec = EnvSpec("rays", leaves, ArraySpec((1,), "float32", -1.0, 1.0))
    agent = make_sac(SACConfig(random_updates=0), spec, NetworkConfig(hidden_sizes=(4,), circular=("lidar",)))
    assert "circle" in str(jax.tree.structure(jax.eval_shape(agent.init, jax.random.key(0)).extra.critic))


@pytest.mark.parametrize("make", [make_actor_critic, lambda *given: make_phasic(*given).net], ids=["ppo", "ppg"])
def test_rays_that_only_the_critic_sees_may_be_circular(make):
    leaves = {"lidar": ArraySpec((6,), "float32"), "x": ArraySpec((2,), "float32")}
    spec = EnvSpec("rays", leaves, DiscreteSpec(2), critic_only=("lidar",))
    net = make(NetworkConfig(hidden_sizes=(4,), circular=("lidar",)), spec)
    params = jax.eval_shape(net.init, jax.random.key(0))
    convolved = {part: "circle" in str(jax.tree.structure(params[part])) for part in ("actor", "critic")}
    assert convolved == {"actor": False, "critic": True}
    misspelled = make(NetworkConfig(hidden_sizes=(4,), circular=("lidr",)), spec)
    with pytest.raises(UserError, match="vectors of rays, got 'lidr'"):
        jax.eval_shape(misspelled.init, jax.random.key(0))


def test_continuous_actor_skips_rays_that_it_does_not_see():
    leaves = {"lidar": ArraySpec((6,), "float32"), "x": ArraySpec((2,), "float32")}
    spec = EnvSpec("rays", leaves, ArraySpec((1,), "float32", -1.0, 1.0), critic_only=("lidar",))
    agent = make_sac(SACConfig(random_updates=0), spec, NetworkConfig(hidden_sizes=(4,), circular=("lidar",)))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    assert "circle" in str(jax.tree.structure(state.extra.critic))
    assert "circle" not in str(jax.tree.structure(state.params))


@pytest.mark.parametrize("name", ["lidr", "boxes"])
def test_circular_rejects_leaves_that_are_not_rays(name):
    inputs = {"lidar": jnp.ones((2, 5)), "boxes": EntitySet(jnp.ones((2, 3, 2)), jnp.ones((2, 3), bool))}
    with pytest.raises(UserError, match=f"vectors of rays, got '{name}': the vectors are lidar"):
        Inputs((name,)).init(jax.random.key(0), inputs)


def test_a_network_turns_the_leaves_that_its_configuration_names():
    leaves = {
        "lidar": ArraySpec((6,), "float32"),
        "own": ArraySpec((2,), "float32"),
        "boxes": ArraySpec((3, 2), "float32"),
    }
    spec = EnvSpec("test", leaves, DiscreteSpec(2))
    for names, expected in (((), False), (("lidar",), True)):
        net = make_actor_critic(NetworkConfig("entities", hidden_sizes=(8,), entity_heads=2, circular=names), spec)
        shapes = jax.eval_shape(net.init, jax.random.key(0))
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(shapes)[0]]
        assert any("circle/lidar" in path for path in paths) == expected
