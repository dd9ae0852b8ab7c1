"""Observations with structure: every leaf has its part, under its own name."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import LayerOptions, NetworkConfig
from agents.networks.observation_inputs import make_inputs
from agents.networks.torsos.cnn import CNN, NATURE_CONVOLUTIONS
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec, zeros_of
from envpool_bridge.spec.tree import items, leaves, map_leaves

OBSERVATION = {
    "arm": (ArraySpec((2, 2), "float32"), DiscreteSpec(3)),
    "camera": ArraySpec((36, 36, 3), "uint8"),
    "keys": MultiDiscreteSpec((2,), (2, 3), (0, 0)),
}
SPEC = EnvSpec("robot", OBSERVATION, DiscreteSpec(4))


def draw(spec, lead, seed=0):
    rng = np.random.default_rng(seed)

    def leaf(leaf_spec):
        shape = (*lead, *leaf_spec.shape)
        if isinstance(leaf_spec, DiscreteSpec):
            return rng.integers(0, leaf_spec.num_values, shape).astype(np.int32)
        if isinstance(leaf_spec, MultiDiscreteSpec):
            return rng.integers(0, np.reshape(leaf_spec.num_values, leaf_spec.shape), shape).astype(np.int32)
        if leaf_spec.dtype == "uint8":
            return rng.integers(0, 255, shape).astype(np.uint8)
        return rng.normal(size=shape).astype(np.float32)

    return map_leaves(leaf, spec)


def test_encode_one_hots_discrete_leaves_and_flattens_arrays():
    observation = draw(OBSERVATION, (5,))
    encoded = make_inputs(SPEC, "mlp").encode(observation)
    assert sorted(encoded) == ["arm/0", "arm/1", "camera", "keys"]
    np.testing.assert_array_equal(encoded["arm/0"], observation["arm"][0].reshape(5, 4))
    np.testing.assert_array_equal(encoded["arm/1"], np.eye(3)[observation["arm"][1]])
    np.testing.assert_allclose(encoded["camera"], observation["camera"].reshape(5, -1) / 255.0, rtol=1e-6)
    keys = observation["keys"]
    np.testing.assert_array_equal(
        encoded["keys"], np.concatenate([np.eye(2)[keys[:, 0]], np.eye(3)[keys[:, 1]]], axis=-1)
    )
    assert {value.dtype for value in encoded.values()} == {jnp.dtype("float32")}


def test_encode_merges_and_restore_splits_steps_and_rows():
    inputs = make_inputs(SPEC, "mlp")
    observation = draw(OBSERVATION, (3, 5))
    by_rows = map_leaves(lambda x: np.concatenate([x[:, row] for row in range(5)]), observation)
    together, alone = inputs.encode(observation), inputs.encode(by_rows)
    for name, value in together.items():
        np.testing.assert_array_equal(value, alone[name])
    restored = inputs.restore(observation, {"head": together["arm/0"]})["head"]
    np.testing.assert_array_equal(restored, observation["arm"][0].reshape(3, 5, 4))


def test_the_gradient_of_a_dense_layer_sums_over_one_axis():
    """Over two it is copied, and takes twice as long on processors."""
    spec = EnvSpec("vectors", ArraySpec((4,), "float32"), DiscreteSpec(2))
    net = make_actor_critic(NetworkConfig(hidden_sizes=(8, 8)), spec)
    params = net.init(jax.random.key(0))
    text = str(jax.make_jaxpr(jax.grad(lambda p: net.value(p, jnp.ones((3, 5, 4))).sum()))(params))
    contracted = re.findall(r"dot_general\[\s*dimension_numbers=\(\(\[([\d, ]*)\]", text)
    assert len(contracted) == 8  # three layers forwards; backwards, three of weights and two of inputs
    assert all(re.fullmatch(r"\d", axes) for axes in contracted)


# Convolutions are slow to compile: test_networks.py has the other of each pair.
@pytest.mark.parametrize(
    ("torso", "shared"),
    [
        *(("mlp", True), ("mlp", False), ("nature_cnn", True)),
        pytest.param("impala_resnet", False, marks=pytest.mark.slow),
    ],
)
def test_outputs_have_the_leading_axes_of_the_observations(torso, shared):
    net = make_actor_critic(NetworkConfig(torso, (8,), shared_torso=shared), SPEC)
    params = jax.jit(net.init)(jax.random.key(0))
    batch = draw(OBSERVATION, (2, 3))
    unroll = jax.jit(net.unroll)
    policy, value, _ = unroll(params, batch, (), None)
    assert policy.shape == (2, 3, 4)
    assert value.shape == (2, 3)
    for step in range(2):
        one_policy, one_value, _ = unroll(params, map_leaves(lambda leaf, step=step: leaf[step], batch), (), None)
        np.testing.assert_allclose(one_policy, policy[step], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(one_value, value[step], rtol=1e-3, atol=1e-5)


def test_named_torso_stores_weights_by_leaf_name():
    net = make_actor_critic(NetworkConfig("nature_cnn", (8, 7), activation="relu", shared_torso=False), SPEC)
    params = jax.device_get(jax.jit(net.init)(jax.random.key(0)))
    torso = params["critic"]["params"]["torso"]
    assert sorted(torso) == ["MLP_0", "image/camera", "input"]
    assert sorted(torso["input"]) == ["bias", "kernel/arm/0", "kernel/arm/1", "kernel/camera", "kernel/keys"]
    observation = draw(OBSERVATION, (5,))
    see = jax.jit(CNN((), LayerOptions("relu"), NATURE_CONVOLUTIONS).apply)
    convolutions = see({"params": torso["image/camera"]}, observation["camera"] / np.float32(255))
    encoded = jax.device_get(jax.jit(make_inputs(SPEC, "nature_cnn").encode)(observation) | {"camera": convolutions})
    x = sum(np.asarray(value) @ np.asarray(torso["input"][f"kernel/{name}"]) for name, value in encoded.items())
    x = np.maximum(x + torso["input"]["bias"], 0.0)
    dense, head = torso["MLP_0"]["Dense_0"], params["critic"]["params"]["head"]["Dense_0"]
    x = np.maximum(x @ dense["kernel"] + dense["bias"], 0.0)
    expected = (x @ head["kernel"] + head["bias"])[:, 0]
    np.testing.assert_allclose(jax.jit(net.value)(params, observation), expected, rtol=1e-4, atol=1e-5)


def test_a_leaf_with_another_name_has_other_weights():
    def names(key):
        spec = EnvSpec("e", {key: ArraySpec((3,), "float32"), "b": ArraySpec((3,), "float32")}, DiscreteSpec(2))
        net = make_actor_critic(NetworkConfig(hidden_sizes=(8,)), spec)
        found = jax.tree_util.tree_flatten_with_path(jax.eval_shape(net.init, jax.random.key(0)))[0]
        return {jax.tree_util.keystr(path) for path, _ in found}

    assert len(names("a") ^ names("z")) == 4  # one kernel in each of two torsos


@pytest.mark.slow  # to compile
def test_every_leaf_has_a_part_in_the_output():
    net = make_actor_critic(NetworkConfig("impala_resnet", (16,), shared_torso=False), SPEC)
    params = jax.jit(net.init)(jax.random.key(0))
    value = jax.jit(net.value)
    observation = draw(OBSERVATION, (1,), seed=1)
    base = value(params, observation)
    zeros = zeros_of(OBSERVATION, (1,))
    for place, _ in enumerate(leaves(observation)):
        counter = iter(range(100))
        changed = map_leaves(
            lambda kept, zero, counter=counter, place=place: zero + 1 if next(counter) == place else kept,
            observation,
            zeros,
        )
        assert abs(float(value(params, changed)[0] - base[0])) > 1e-6, list(items(OBSERVATION))[place][0]


def test_critic_only_leaves_do_not_reach_the_policy():
    observation = {"local": ArraySpec((3,), "float32"), "world": (ArraySpec((4,), "float32"), DiscreteSpec(2))}
    spec = EnvSpec("e", observation, DiscreteSpec(2), critic_only=("world",))
    net = make_actor_critic(NetworkConfig(hidden_sizes=(8,)), spec)
    params = jax.jit(net.init)(jax.random.key(0))
    inputs = {name: params[name]["params"]["torso"]["input"] for name in params}
    assert sorted(inputs["critic"]) == ["bias", "kernel/local", "kernel/world/0", "kernel/world/1"]
    assert sorted(inputs["actor"]) == ["bias", "kernel/local"]
    values = draw(observation, (2,))
    other = {**values, "world": (values["world"][0] + 1.0, values["world"][1])}
    np.testing.assert_array_equal(jax.jit(net.policy)(params, values), jax.jit(net.policy)(params, other))
    assert not np.allclose(jax.jit(net.value)(params, values), jax.jit(net.value)(params, other))


def test_critic_only_is_rejected_if_shared_or_everything():
    leaf = ArraySpec((3,), "float32")
    spec = EnvSpec("e", {"local": leaf, "world": leaf}, DiscreteSpec(2), critic_only=("world",))
    with pytest.raises(UserError, match=r"only the value may see observation\['world'\]: give it its own torso"):
        make_actor_critic(NetworkConfig(shared_torso=True), spec)
    with pytest.raises(UserError, match=r"\['lokal'\] is no part of the observation: got observation\['local'\], obs"):
        make_actor_critic(NetworkConfig(), dataclasses.replace(spec, critic_only=("lokal",)))
    alone = EnvSpec("e", {"world": leaf}, DiscreteSpec(2), critic_only=("world",))
    with pytest.raises(UserError, match=r"needs an input: the observation has only observation\['world'\]"):
        make_actor_critic(NetworkConfig(), alone)


def test_validate_torso_names_unfit_leaves():
    vectors = EnvSpec("robot", {"a": ArraySpec((3,), "float32"), "b": DiscreteSpec(2)}, DiscreteSpec(4))
    with pytest.raises(
        UserError,
        match=r"needs images of rank 3, or frames of them, got observation\['a'\] of shape \(3,\), observation",
    ):
        make_actor_critic(NetworkConfig("impala_resnet"), vectors)
    small = EnvSpec("robot", {"near": ArraySpec((9, 9, 3), "uint8")}, DiscreteSpec(4))
    with pytest.raises(UserError, match=r"at least 36 x 36 pixels, got observation\['near'\] of shape \(9, 9, 3\)"):
        make_actor_critic(NetworkConfig("nature_cnn"), small)


def test_deviations_of_an_action_with_structure_are_kept_by_name():
    action = {"amount": ArraySpec((2,), "float32"), "kind": DiscreteSpec(3), "more": (ArraySpec((1,), "float32"),)}
    spec = EnvSpec("e", ArraySpec((3,), "float32"), action)
    net = make_actor_critic(NetworkConfig(hidden_sizes=(8,), initial_log_std=-0.5), spec)
    params = jax.jit(net.init)(jax.random.key(0))
    assert {name: value.shape for name, value in params["log_std"].items()} == {"amount": (2,), "more/0": (1,)}
    params["log_std"]["more/0"] = jnp.array([-2.0])
    parameters = jax.jit(net.policy)(params, jnp.zeros((4, 3)))
    np.testing.assert_allclose(parameters, np.tile([0, 0, -0.5, -0.5, 0, 0, 0, 0, -2.0], (4, 1)), atol=1e-6)
