"""Ensembles of critics against a numpy network; what they see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.networks.continuous_actors import make_deterministic_actor, make_squashed_actor
from agents.networks.critics import make_critics
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", -1.0, 1.0))
NETWORK = NetworkConfig(hidden_sizes=(8, 4), activation="relu")


def _filled(init) -> dict:
    """Parameters of the shapes that `init` makes, drawn by numpy: orthogonal ones take seconds to compile."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(init, jax.random.key(0))
    return jax.tree.map(lambda leaf: (rng.normal(size=leaf.shape) * 0.3).astype(np.float32), shapes)


def _numpy_value(params, member, observation, action) -> np.ndarray:
    layers = jax.tree.map(lambda leaf: np.asarray(leaf[member], np.float64), params)["params"]
    first = layers["torso"]["input"]
    x = observation @ first["kernel/observation"] + action @ first["kernel/action"] + first["bias"]
    second = layers["torso"]["MLP_0"]["Dense_0"]
    x = np.maximum(np.maximum(x, 0.0) @ second["kernel"] + second["bias"], 0.0)
    head = layers["head"]["Dense_0"]
    return (x @ head["kernel"] + head["bias"])[:, 0]


def test_critics_are_separate_networks_of_observation_and_action():
    critics = make_critics(NETWORK, SPEC, 2, 3)
    params = _filled(critics.init)
    rng = np.random.default_rng(0)
    observation, action = (rng.normal(size=(5, size)).astype(np.float32) for size in (3, 2))
    values = np.asarray(jax.jit(critics.values)(params, observation, action))
    assert values.shape == (3, 5)
    for member in range(3):
        np.testing.assert_allclose(values[member], _numpy_value(params, member, observation, action), rtol=1e-4)
    assert np.abs(values[0] - values[1]).min() > 1e-3


def test_critics_combine_images_vectors_and_action():
    observation = {"camera": ArraySpec((36, 36, 1), "uint8", 0, 255), "arm": ArraySpec((2,), "float32")}
    spec = EnvSpec("test", observation, ArraySpec((2,), "float32", -1.0, 1.0))
    critics = make_critics(NetworkConfig(torso="nature_cnn", hidden_sizes=(32,)), spec, 2, 2)
    params = _filled(critics.init)
    rng = np.random.default_rng(0)
    seen = {
        "camera": rng.integers(0, 255, (2, 3, 36, 36, 1)).astype(np.uint8),
        "arm": rng.normal(size=(2, 3, 2)).astype(np.float32),
    }
    action = rng.uniform(-1, 1, (2, 3, 2)).astype(np.float32)
    values = jax.jit(critics.values)
    found = values(params, seen, action)
    assert found.shape == (2, 2, 3)
    for changed in (
        values(params, {**seen, "arm": seen["arm"] + 1.0}, action),
        values(params, {**seen, "camera": 255 - seen["camera"]}, action),
        values(params, seen, -action),
    ):
        assert (np.asarray(changed) != found).any(axis=(1, 2)).all()  # of both critics


def test_the_global_state_is_seen_by_critics_and_by_no_actor():
    observation = {"own": ArraySpec((2,), "float32"), "state": ArraySpec((3,), "float32")}
    spec = EnvSpec("test", observation, ArraySpec((2,), "float32", -1.0, 1.0), critic_only=("state",))
    here = {"own": jnp.ones((1, 2)), "state": jnp.zeros((1, 3))}
    there = {**here, "state": jnp.ones((1, 3))}
    critics = make_critics(NETWORK, spec, 2, 2)
    params = _filled(critics.init)
    values = jax.jit(critics.values)
    assert (values(params, here, jnp.zeros((1, 2))) != values(params, there, jnp.zeros((1, 2)))).all()
    deterministic, squashed = (make(NETWORK, spec, 2) for make in (make_deterministic_actor, make_squashed_actor))
    for actor, function in ((deterministic, deterministic.action), (squashed, lambda *x: squashed.parameters(*x).mean)):
        own = _filled(actor.init)
        np.testing.assert_array_equal(jax.jit(function)(own, here), jax.jit(function)(own, there))


def test_critics_reject_invalid_settings():
    with pytest.raises(UserError, match="nature_cnn torso needs images"):
        make_critics(NetworkConfig(torso="nature_cnn"), SPEC, 2, 2)
