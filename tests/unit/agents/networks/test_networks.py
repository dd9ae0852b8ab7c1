"""Networks: shapes, equality with plain convolutions, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

IMAGE = ArraySpec((4, 36, 36), "uint8")


# The other torso of each pair, shared or not, sees an image in test_structured_observations.py: convolutions are slow to compile.
@pytest.mark.parametrize(
    ("torso", "observation", "shared"),
    [
        ("mlp", ArraySpec((3,), "float32"), True),
        ("mlp", DiscreteSpec(6), False),
        ("nature_cnn", IMAGE, False),
        ("impala_resnet", IMAGE, True),
        ("cnn", ArraySpec((6, 7, 2), "float32"), True),
    ],
)
def test_outputs_have_the_leading_axes_of_the_observations(torso, observation, shared):
    spec = EnvSpec("e", observation, DiscreteSpec(4))
    net = make_actor_critic(NetworkConfig(torso, (8,), shared_torso=shared), spec)
    params = jax.jit(net.init)(jax.random.key(0))
    batch = jnp.ones((2, 3, *observation.shape), observation.dtype)
    policy, value, _ = jax.jit(net.unroll)(params, batch, (), None)
    assert policy.shape == (2, 3, 4)
    assert value.shape == (2, 3)
    np.testing.assert_allclose(jax.jit(net.policy)(params, batch[0]), policy[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(net.value)(params, batch[1]), value[1], rtol=1e-4, atol=1e-5)


def test_stacked_frames_come_first_or_last():
    first = make_actor_critic(NetworkConfig("nature_cnn", (8,)), EnvSpec("e", IMAGE, DiscreteSpec(2)))
    last = make_actor_critic(
        NetworkConfig("nature_cnn", (8,)), EnvSpec("e", ArraySpec((36, 36, 4), "uint8"), DiscreteSpec(2))
    )
    params = jax.jit(first.init)(jax.random.key(0))
    image = jax.random.randint(jax.random.key(1), (5, 4, 36, 36), 0, 255).astype(jnp.uint8)
    np.testing.assert_allclose(
        jax.jit(first.policy)(params, image),
        jax.jit(last.policy)(params, jnp.moveaxis(image, 1, -1)),
        rtol=1e-4,
        atol=1e-6,
    )


def test_continuous_policies_carry_their_standard_deviation():
    spec = EnvSpec("e", ArraySpec((3,), "float32"), ArraySpec((2,), "float32"))
    net = make_actor_critic(NetworkConfig(initial_log_std=-0.5), spec)
    policy = jax.jit(net.policy)(jax.jit(net.init)(jax.random.key(0)), jnp.zeros((4, 3)))
    np.testing.assert_allclose(policy[:, 2:], np.full((4, 2), -0.5))


def test_a_fresh_policy_is_nearly_uniform():
    net = make_actor_critic(NetworkConfig(), EnvSpec("e", ArraySpec((3,), "float32"), DiscreteSpec(4)))
    logits = jax.jit(net.policy)(jax.jit(net.init)(jax.random.key(0)), jax.random.normal(jax.random.key(1), (10, 3)))
    np.testing.assert_allclose(jax.nn.softmax(logits), np.full((10, 4), 0.25), atol=0.02)


def test_invalid_torso_is_rejected():
    vector = EnvSpec("walker", ArraySpec((3,), "float32"), DiscreteSpec(4))
    with pytest.raises(UserError, match="walker: the nature_cnn torso needs images of rank 3"):
        make_actor_critic(NetworkConfig("nature_cnn"), vector)
    small = EnvSpec("dots", ArraySpec((8, 8, 3), "uint8"), DiscreteSpec(4))
    with pytest.raises(UserError, match="at least 36 x 36"):
        make_actor_critic(NetworkConfig("nature_cnn"), small)
    with pytest.raises(UserError, match="hidden_sizes"):
        NetworkConfig(hidden_sizes=())
