"""PopArt: statistics against a loop, values that stay what they were, and rlax's own."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.ops import popart
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.mesh import LearnerMesh

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
FORMS = {
    "apart": ("critic", "params", "head", "Dense_0"),
    "apart, lstm": ("critic", "head", "params", "head", "Dense_0"),
    "shared": ("shared", "params", "value", "Dense_0"),
    "shared, lstm": ("shared", "head", "params", "value", "Dense_0"),
}


def update(moments, targets, weight, beta):
    return popart.merge(moments, popart.target_moments(targets, weight), beta)


def network(form):
    return NetworkConfig(
        hidden_sizes=(4,),
        shared_torso=form.startswith("shared"),
        core="lstm" if form.endswith("lstm") else "none",
        core_size=4,
    )


def random_params(net):
    """In the place of `init`, whose orthogonal matrices take seconds to compile."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(net.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: 0.5 * rng.normal(size=leaf.shape).astype(np.float32), shapes)


def statistics(mean, variance, debias=1.0):
    return popart.PopArt(jnp.float32(mean), jnp.float32(variance), jnp.float32(debias))


def moments_by_loop(batches, beta):
    """First and second moment as running means from 0, then divided by their debiasing: float64."""
    first = second = debias = 0.0
    for targets, weight in batches:
        if weight.sum() == 0:
            continue
        kept = targets[weight > 0].astype(np.float64)
        first = (1 - beta) * first + beta * np.average(kept, weights=weight[weight > 0])
        second = (1 - beta) * second + beta * np.average(kept**2, weights=weight[weight > 0])
        debias = (1 - beta) * debias + beta
    return first / debias, second / debias - (first / debias) ** 2, debias


@pytest.mark.parametrize(("beta", "offset"), [(0.3, 0.0), (0.01, 50.0), (1.0, -3.0)])
def test_popart_moments_are_debiased_and_weighted(beta, offset):
    rng, got, batches = np.random.default_rng(0), popart.init(), []
    for number in range(12):
        targets = (offset + number + (1 + number) * rng.normal(size=(5, 4))).astype(np.float32)
        weight = rng.choice([0.0, 0.5, 1.0], size=(5, 4)).astype(np.float32) * (number % 4 != 1)
        batches.append((np.where(weight > 0, targets, np.nan).astype(np.float32), weight))
        got = jax.jit(update, static_argnums=3)(got, *batches[-1], beta)
    mean, variance, debias = moments_by_loop(batches, beta)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(got.variance, variance, rtol=1e-4)
    np.testing.assert_allclose(got.debias, debias, rtol=1e-5)


def test_a_small_deviation_far_from_zero_is_not_lost():
    targets = np.float32(30000.0) + np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    got = popart.init()
    for _ in range(20):
        got = update(got, targets, np.ones((64, 64), np.float32), 0.1)
    np.testing.assert_allclose(popart.deviation(got), targets.astype(np.float64).std(), rtol=1e-3)


@pytest.mark.parametrize("before", [popart.init(), statistics(3.0, 4.0, 0.5)])
def test_popart_ignores_batch_without_weight(before):
    after = update(before, jnp.full((3, 2), jnp.nan), jnp.zeros((3, 2)), 0.1)
    chex.assert_trees_all_equal(after, before)


def test_popart_initial_values_equal_network_outputs():
    value = jnp.array([-2.0, 0.0, 7.0])
    np.testing.assert_array_equal(popart.normalize(popart.init(), value), value)
    np.testing.assert_array_equal(popart.denormalize(popart.init(), value), value)


@pytest.mark.parametrize(("variance", "expected"), [(0.0, 1e-2), (9.0, 3.0), (1e14, 1e6)])
def test_the_deviation_stays_within_its_bounds(variance, expected):
    kept = statistics(5.0, variance)
    assert float(popart.deviation(kept)) == pytest.approx(expected)
    np.testing.assert_allclose(popart.normalize(kept, jnp.array([5.0, 5.0 + expected])), [0.0, 1.0], atol=1e-4)
    np.testing.assert_allclose(popart.denormalize(kept, jnp.array([0.0, 1.0])), [5.0, 5.0 + expected], rtol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_popart_rescaling_preserves_values(form):
    net, rng = make_actor_critic(network(form), SPEC), np.random.default_rng(2)
    params = random_params(net)
    observation, is_first = rng.normal(size=(4, 3, 3)).astype(np.float32), np.zeros((4, 3), bool)
    unroll = jax.jit(net.unroll)
    policy, value, _ = unroll(params, observation, net.initial_state(3), is_first)
    old = popart.init()
    for mean, spread in rng.normal(size=(5, 2)) * [10.0, 2.0]:
        new = statistics(mean, np.exp(spread))
        after = popart.rescale(params, old, new)
        policy_after, value_after, _ = unroll(after, observation, net.initial_state(3), is_first)
        kept, got = popart.denormalize(old, value), popart.denormalize(new, value_after)
        np.testing.assert_allclose(got, kept, rtol=1e-5, atol=1e-5)
        assert not np.allclose(value_after, value, atol=1e-3)
        np.testing.assert_array_equal(policy_after, policy)
        params, value, old = after, value_after, new


@pytest.mark.parametrize("form", FORMS)
def test_popart_replaces_only_the_value_layer(form):
    params = random_params(make_actor_critic(network(form), SPEC))
    assert popart.value_layer(params) == FORMS[form]
    before = jax.tree.map(np.array, params)
    after = popart.rescale(params, popart.init(), statistics(1.0, 4.0))
    chex.assert_trees_all_equal(params, before)
    changed = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for (path, old), new in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(after), strict=True)
        if not np.array_equal(old, new)
    }
    layer = "/".join(FORMS[form])
    assert changed == {f"{layer}/kernel", f"{layer}/bias"}


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"policy": {"kernel": np.zeros((4, 2))}}, "got policy/kernel [4, 2]"),
        ({}, "got no parameters"),
        ({"critic": np.zeros(3)}, "got critic [3]"),
        (
            {"critic": {"params": {"head": {"Dense_0": {"kernel": np.zeros((4, 2)), "bias": np.zeros(2)}}}}},
            "got critic/params/head/Dense_0/bias [2], critic/params/head/Dense_0/kernel [4, 2]",
        ),
    ],
)
def test_popart_rejects_parameters_without_value_layer(params, found):
    with pytest.raises(UserError, match=re.escape(found)) as error:
        popart.rescale(params, popart.init(), popart.init())
    assert "expected exactly one kernel [H, 1] and bias [1], at one of critic/params/head/Dense_0" in str(error.value)


def test_with_rows_on_four_devices_the_statistics_are_the_same():
    mesh = LearnerMesh(jax.local_devices()[:4])
    targets = np.random.default_rng(3).normal(size=(3, 8)).astype(np.float32)
    weight = (targets > -1.0).astype(np.float32)
    one = update(popart.init(), targets, weight, 0.1)
    sharded = jax.device_put((targets, weight), mesh.rows)
    compiled = jax.jit(update, static_argnums=3).lower(popart.init(), *sharded, 0.1).compile()
    assert "all-gather" not in compiled.as_text()
    chex.assert_trees_all_close(jax.device_get(compiled(popart.init(), *sharded)), jax.device_get(one), rtol=1e-5)


def test_it_is_rlax_popart_where_statistics_are_old():
    """rlax does not debias, and its step size is for each target: with old statistics and beta / N the formulas agree."""
    rlax = pytest.importorskip("rlax")
    beta, rng = 0.2, np.random.default_rng(4)
    targets = (3.0 + 2.0 * rng.normal(size=(6, 5))).astype(np.float32)
    old, indices = statistics(1.0, 2.25), jnp.zeros((6, 5), jnp.int32)
    theirs = rlax.PopArtState(jnp.array([1.0]), jnp.array([1.5]), jnp.array([2.25 + 1.0]))
    _, popart_update = rlax.popart(1, beta / targets.size, popart.SMALLEST_DEVIATION, popart.LARGEST_DEVIATION)
    params = random_params(make_actor_critic(network("apart"), SPEC))
    layer = params["critic"]["params"]["head"]["Dense_0"]
    their_layer, expected = popart_update({"w": layer["kernel"], "b": layer["bias"]}, theirs, targets, indices)

    new = update(old, targets, jnp.ones_like(targets), beta)
    np.testing.assert_allclose(new.mean, expected.shift[0], rtol=1e-5)
    np.testing.assert_allclose(popart.deviation(new), expected.scale[0], rtol=1e-5)
    ours = popart.rescale(params, old, new)["critic"]["params"]["head"]["Dense_0"]
    np.testing.assert_allclose(ours["kernel"], their_layer["w"], rtol=1e-5)
    np.testing.assert_allclose(ours["bias"], their_layer["b"], rtol=1e-5)
    normalized = rlax.normalize(expected, targets, indices)
    np.testing.assert_allclose(popart.normalize(new, targets), normalized, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        popart.denormalize(new, normalized), rlax.unnormalize(expected, normalized, indices), rtol=1e-5
    )
