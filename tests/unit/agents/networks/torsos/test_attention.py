"""Entities, with and without attention: their order and what is hidden do not matter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.observation_inputs import make_inputs
from agents.networks.torsos.attention import ResidualSelfAttention, masked_max, masked_mean, masked_softmax
from agents.networks.torsos.entity_sets import EntitySet
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

BOXES, RAMPS = 4, 2
OBSERVATION = {
    "boxes": ArraySpec((BOXES, 3), "float32"),
    "boxes_mask": ArraySpec((BOXES,), "int8"),
    "me": ArraySpec((5,), "float32"),
    "near": (ArraySpec((RAMPS, 2), "float32"), DiscreteSpec(3)),
}
SPEC = EnvSpec("hide", OBSERVATION, DiscreteSpec(4))
CONFIG = NetworkConfig("entities", (8, 6), shared_torso=False, entity_heads=2)


def drawn(init, *arguments, seed=1):
    """Parameters of the shapes that `init` makes, with nothing at 0 or 1."""
    shapes, rng = jax.eval_shape(lambda: init(jax.random.key(0), *arguments)), np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)


def observations(lead, seed=2):
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, 2, (*lead, BOXES)).astype(np.int8)
    mask[..., 0], mask[..., 1] = 1, 0
    return {
        "boxes": rng.normal(size=(*lead, BOXES, 3)).astype(np.float32),
        "boxes_mask": mask,
        "me": rng.normal(size=(*lead, 5)).astype(np.float32),
        "near": (rng.normal(size=(*lead, RAMPS, 2)).astype(np.float32), rng.integers(0, 3, lead).astype(np.int32)),
    }


@pytest.fixture(scope="module", params=[2, 0])
def config(request):
    return dataclasses.replace(CONFIG, entity_heads=request.param)


@pytest.fixture(scope="module")
def value(config):
    """Values [B] of observations, by a jitted network."""
    net = make_actor_critic(config, SPEC)
    params, apply = drawn(net.init), jax.jit(net.value)
    return lambda observation: np.asarray(apply(params, observation))


def test_the_order_of_entities_does_not_change_the_features(value):
    observation = observations((5,))
    expected = value(observation)
    order = [2, 3, 1, 0]
    moved = {
        **observation,
        "boxes": observation["boxes"][:, order],
        "boxes_mask": observation["boxes_mask"][:, order],
        "near": (observation["near"][0][:, ::-1], observation["near"][1]),
    }
    np.testing.assert_allclose(value(moved), expected, atol=1e-5)
    assert np.abs(value({**moved, "boxes_mask": observation["boxes_mask"]}) - expected).max() > 1e-3


@pytest.mark.parametrize("other", [7.0, np.nan, np.inf])
def test_hidden_entity_has_no_effect_bit_for_bit(value, other):
    observation = observations((5,))
    changed = np.where(observation["boxes_mask"][..., None] == 0, np.float32(other), observation["boxes"])
    np.testing.assert_array_equal(value({**observation, "boxes": changed}), value(observation))


def test_a_hidden_entity_is_as_one_that_is_not_there(config, value):
    # Weights do not depend on how many entities a set has.
    few = EnvSpec("few", {**OBSERVATION, "boxes": ArraySpec((2, 3), "float32")}, DiscreteSpec(4))
    del few.observation["boxes_mask"]
    net, observation = make_actor_critic(config, few), observations((5,))
    alone = {**observation, "boxes": observation["boxes"][:, [0, 3]]}
    del alone["boxes_mask"]
    hidden = {**observation, "boxes_mask": np.tile(np.int8([1, 0, 0, 1]), (5, 1))}
    np.testing.assert_allclose(value(hidden), jax.jit(net.value)(drawn(net.init), alone), atol=1e-5)


def test_every_leaf_has_a_part_in_the_output(value):
    observation = observations((1,), seed=3)
    expected = value(observation)
    ramps, kind = observation["near"]
    for name, changed in {
        "boxes": {"boxes": observation["boxes"] + 1},
        "boxes_mask": {"boxes_mask": 1 - observation["boxes_mask"]},
        "me": {"me": observation["me"] + 1},
        "near/0": {"near": (ramps + 1, kind)},
        "near/1": {"near": (ramps, (kind + 1) % 3)},
    }.items():
        assert np.abs(value({**observation, **changed}) - expected).max() > 1e-4, name


def test_fully_hidden_sets_have_finite_values_and_gradients(config):
    observation = {"boxes": OBSERVATION["boxes"], "boxes_mask": OBSERVATION["boxes_mask"]}
    net = make_actor_critic(config, EnvSpec("hide", observation, DiscreteSpec(4)))
    params = drawn(net.init)
    seen = {name: value for name, value in observations((5,)).items() if name in observation}
    seen["boxes_mask"] = np.zeros_like(seen["boxes_mask"])
    seen["boxes"] = np.full_like(seen["boxes"], np.nan)

    def loss(params):
        policy, value, _ = net.unroll(params, seen, (), None)
        return jnp.sum(jnp.square(policy)) + jnp.sum(jnp.square(value)), value

    (_, value), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert np.all(np.isfinite(value))
    np.testing.assert_array_equal(value, np.repeat(value[:1], 5))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradients))


def test_attention_keeps_leading_axes():
    net = make_actor_critic(CONFIG, SPEC)
    params, batch = drawn(net.init), observations((2, 3))
    policy, value, _ = jax.jit(net.unroll)(params, batch, (), None)
    assert policy.shape == (2, 3, 4)
    one = jax.jit(net.value)(params, jax.tree.map(lambda leaf: leaf[1], batch))
    np.testing.assert_allclose(one, value[1], rtol=1e-4, atol=1e-5)


def by_loop(weights, x, visible, num_heads):
    """LayerNorm(x + attention) of one set [K, H], one head and member at a time."""
    part = x.shape[1] // num_heads
    query, key, value = (x @ weights[name]["kernel"] + weights[name]["bias"] for name in ("query", "key", "value"))
    attended = np.zeros_like(x)
    for head in range(num_heads):
        mine = slice(head * part, (head + 1) * part)
        for member in range(len(x)):
            score = {k: query[member, mine] @ key[k, mine] / np.sqrt(part) for k in range(len(x)) if visible[k]}
            total = sum(np.exp(one) for one in score.values())
            for k, one in score.items():
                attended[member, mine] += np.exp(one) / total * value[k, mine]
    x = x + attended @ weights["output"]["kernel"] + weights["output"]["bias"]
    centered = x - x.mean(1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-6)
    return scaled * weights["norm"]["scale"] + weights["norm"]["bias"]


def test_attention_is_the_one_of_the_paper():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 5, 6)).astype(np.float32)
    visible = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 1, 0, 0]], bool)
    module = ResidualSelfAttention(3)
    params = drawn(module.init, x, visible)
    got = jax.jit(module.apply)(params, x, visible)
    weights = jax.tree.map(lambda leaf: leaf.astype(np.float64), params["params"])
    for row in range(3):
        np.testing.assert_allclose(got[row], by_loop(weights, x[row], visible[row], 3), rtol=1e-4, atol=1e-5)


def test_masked_softmax_and_mean_ignore_hidden_members():
    visible = np.array([[True, False, True], [False, False, False]])
    weights = masked_softmax(jnp.array([[0.0, 50.0, 0.0], [1.0, 2.0, 3.0]]), visible)
    np.testing.assert_allclose(weights, [[0.5, 0.0, 0.5], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-6)
    assert weights[0, 1] == 0.0
    x = np.array([[[1.0], [100.0], [3.0]], [[1.0], [2.0], [3.0]]], np.float32)
    np.testing.assert_array_equal(masked_mean(x, visible), [[2.0], [0.0]])
    np.testing.assert_array_equal(masked_max(-x, visible), [[-1.0], [0.0]])


def test_without_attention_mean_and_maximum_are_pooled():
    net = make_actor_critic(NetworkConfig("entities", (3,), activation="relu", entity_heads=0), SPEC)
    params, seen = drawn(net.init), observations((4,))
    torso = params["critic"]["params"]["torso"]
    kind = np.eye(3)[seen["near"][1]]
    encoded = []
    for name, entities, visible in (("boxes", seen["boxes"], seen["boxes_mask"]), ("near/0", seen["near"][0], None)):
        layer = torso[f"entity/{name}"]
        shared = seen["me"] @ layer["kernel/me"] + kind @ layer["kernel/near/1"] + layer["bias"]
        for index in range(entities.shape[1]):
            outputs = np.maximum(entities[:, index] @ layer[f"kernel/{name}"] + shared, 0)
            encoded.append(np.where((1 if visible is None else visible[:, index : index + 1]) == 1, outputs, np.nan))
    pooled = np.concatenate([np.nanmean(encoded, axis=0), np.nanmax(encoded, axis=0)], axis=-1)
    layer = torso["input"]
    x = pooled @ layer["kernel/~entities"] + seen["me"] @ layer["kernel/me"] + kind @ layer["kernel/near/1"]
    head = params["critic"]["params"]["head"]["Dense_0"]
    expected = np.maximum(x + layer["bias"], 0) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(jax.jit(net.value)(params, seen), expected[:, 0], rtol=1e-4, atol=1e-5)


def test_entity_sets_are_rank_2_floats_with_named_masks():
    observation = observations((5,))
    encoded = make_inputs(SPEC, "entities").encode(observation)
    assert sorted(encoded) == ["boxes", "me", "near/0", "near/1"]
    assert isinstance(encoded["boxes"], EntitySet)
    np.testing.assert_array_equal(encoded["boxes"].features, observation["boxes"])
    np.testing.assert_array_equal(encoded["boxes"].visible, observation["boxes_mask"] == 1)
    assert np.all(encoded["near/0"].visible)
    assert encoded["near/1"].shape == (5, 3)
    stacked = EnvSpec("e", {"a": ArraySpec((4, 3), "float32", frames=4), "b": OBSERVATION["boxes"]}, DiscreteSpec(2))
    inputs = make_inputs(stacked, "entities")
    encoded = inputs.encode({"a": np.zeros((5, 4, 3), np.float32), "b": observation["boxes"]})
    assert encoded["a"].shape == (5, 12)  # a stack of frames is no set
    assert make_inputs(SPEC, "mlp").encode(observation)["boxes"].shape == (5, 12)


def test_entity_inputs_include_other_leaves():
    torso = drawn(make_actor_critic(CONFIG, SPEC).init)["critic"]["params"]["torso"]
    assert sorted(torso) == ["MLP_0", "attention", "entity/boxes", "entity/near/0", "input"]
    assert sorted(torso["entity/boxes"]) == ["bias", "kernel/boxes", "kernel/me", "kernel/near/1"]
    assert sorted(torso["input"]) == ["bias", "kernel/me", "kernel/near/1", "kernel/~entities"]


def test_an_observation_that_is_one_set_needs_no_name():
    net = make_actor_critic(CONFIG, EnvSpec("e", OBSERVATION["boxes"], DiscreteSpec(4)))
    params, boxes = drawn(net.init), observations((5,))["boxes"]
    value = jax.jit(net.value)
    np.testing.assert_allclose(value(params, boxes[:, ::-1]), value(params, boxes), atol=1e-5)


def test_a_policy_that_may_see_no_set_reads_the_other_leaves():
    spec = EnvSpec(
        "e", {"me": OBSERVATION["me"], "world": OBSERVATION["boxes"]}, DiscreteSpec(4), critic_only=("world",)
    )
    net = make_actor_critic(CONFIG, spec)
    torso = drawn(net.init)["actor"]["params"]["torso"]
    assert sorted(torso["input"]) == ["bias", "kernel/me"]


def test_entity_torso_rejects_invalid_leaves_and_sizes():
    flat = {"a": ArraySpec((3,), "float32"), "b": ArraySpec((2, 2), "uint8")}
    with pytest.raises(
        UserError, match=r"needs a float leaf of rank 2, .*, got observation\['a'\] \(3,\) float32, obs"
    ):
        make_actor_critic(CONFIG, EnvSpec("e", flat, DiscreteSpec(2)))
    for mask in (ArraySpec((3,), "int8"), ArraySpec((BOXES,), "float32"), DiscreteSpec(2)):
        with pytest.raises(
            UserError, match=r"mask of observation\['boxes'\] must be an array of integers .* \(4,\), got"
        ):
            make_actor_critic(CONFIG, EnvSpec("e", {**OBSERVATION, "boxes_mask": mask}, DiscreteSpec(2)))
    with pytest.raises(UserError, match=r"entity_heads must divide hidden_sizes\[0\]: got 4 and 30; use .* 28 or 32"):
        NetworkConfig("entities", (30,))
    assert not NetworkConfig("entities").shares_torso
