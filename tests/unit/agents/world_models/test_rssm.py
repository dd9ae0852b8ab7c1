"""The recurrent state-space model against dense layers and numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.world_models.layers import BlockDense
from agents.world_models.model import balanced_kl, kl
from agents.world_models.rssm import RSSM, UNIMIX, Latent, initial_latent, mixed_log_probs, sample_stoch
from agents.world_models.sizes import WorldModelConfig
from envpool_bridge.errors import UserError

SIZES = WorldModelConfig(deter=12, hidden=5, classes=3, units=4, stoch=2, blocks=4).sizes
ROWS, ACTIONS, TOKENS = 3, 2, 6


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def block_diagonal(kernel):
    """The dense matrix of a kernel [G, I, O]."""
    blocks, size, out = kernel.shape
    matrix = np.zeros((blocks * size, blocks * out))
    for index in range(blocks):
        matrix[index * size : (index + 1) * size, index * out : (index + 1) * out] = kernel[index]
    return matrix


@pytest.fixture(scope="module")
def params():
    rssm = RSSM(SIZES)
    made = rssm.init(jax.random.key(0), initial_latent(SIZES, 1), jnp.zeros((1, ACTIONS)), jnp.zeros((1, TOKENS)))
    # Random biases and scales: zeros and ones would hide a term.
    return jax.tree.map(lambda leaf: leaf + 0.3 * random(*leaf.shape, seed=leaf.size), made)


def test_a_block_layer_has_a_block_diagonal_matrix():
    layer, x = BlockDense(8, 4), random(ROWS, 12)
    made = layer.init(jax.random.key(1), x)["params"]
    bias = random(8)
    got = layer.apply({"params": {**made, "bias": bias}}, x)
    np.testing.assert_allclose(got, x @ block_diagonal(np.asarray(made["kernel"])) + bias, rtol=1e-4, atol=1e-5)


def norm_silu(x, scale):
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * scale
    return y / (1 + np.exp(-y))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_block(x):
    return x.reshape(ROWS, SIZES.blocks, -1)


def test_the_recurrent_state_is_that_of_a_dense_gru(params):
    tree = jax.tree.map(np.asarray, params["params"])
    deter, action = random(ROWS, SIZES.deter, seed=1), random(ROWS, ACTIONS, seed=2) * 3
    stoch = np.eye(SIZES.classes, dtype=np.float32)[np.array([[0, 1], [2, 2], [1, 0]])]
    got = RSSM(SIZES).apply(params, Latent(deter, stoch), action, method=RSSM.advance)

    inputs = {"deter": deter, "stoch": stoch.reshape(ROWS, -1), "action": np.clip(action, -1, 1)}
    hidden = []
    for name, x in inputs.items():
        layer = tree[f"input_{name}"]
        linear = x @ layer["Dense_0"]["kernel"] + layer["Dense_0"]["bias"]
        hidden.append(norm_silu(linear, layer["NormSiLU_0"]["norm"]["scale"]))
    shared = np.concatenate(hidden, axis=-1)
    x = np.concatenate([np.concatenate([own, shared], axis=-1) for own in np.split(deter, SIZES.blocks, -1)], axis=-1)
    x = x @ block_diagonal(tree["hidden"]["kernel"]) + tree["hidden"]["bias"]
    x = norm_silu(x, tree["hidden_norm"]["norm"]["scale"])
    x = x @ block_diagonal(tree["gates"]["kernel"]) + tree["gates"]["bias"]
    reset, candidate, update = (gate.reshape(ROWS, -1) for gate in np.split(by_block(x), 3, axis=-1))
    update = sigmoid(update - 1)
    expected = update * np.tanh(sigmoid(reset) * candidate) + (1 - update) * deter
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_every_class_keeps_a_share_of_the_uniform_distribution(params):
    probs = np.exp(RSSM(SIZES).apply(params, 100 * random(ROWS, SIZES.deter), method=RSSM.prior))
    assert probs.shape == (ROWS, SIZES.stoch, SIZES.classes)
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-5)
    assert probs.min() >= 0.999 * UNIMIX / SIZES.classes
    logits = random(4, 3)
    soft = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(mixed_log_probs(logits), np.log(0.99 * soft + 0.01 / 3), rtol=1e-5)


def test_samples_have_their_frequencies_and_a_straight_gradient():
    probs = np.array([[0.2, 0.5, 0.3]], np.float32)
    noise = jax.random.gumbel(jax.random.key(0), (20_000, 1, 3))
    samples = sample_stoch(jnp.log(probs), noise)
    np.testing.assert_allclose(samples.mean(0), probs, atol=0.015)
    np.testing.assert_allclose(samples.max(-1), 1.0, rtol=1e-6)

    def weighted(logits):
        return (sample_stoch(jax.nn.log_softmax(logits), noise[0]) * jnp.arange(3)).sum()

    logits = jnp.log(probs)
    smooth = jax.grad(lambda x: (jax.nn.softmax(x) * jnp.arange(3)).sum())(logits)
    np.testing.assert_allclose(jax.grad(weighted)(logits), smooth, rtol=1e-5)


def test_kl_is_balanced_and_has_no_gradient_when_free():
    p, q = (np.asarray(jax.nn.log_softmax(2 * random(4, 2, 3, seed=seed))) for seed in (1, 2))
    by_hand = (np.exp(p) * (p - q)).sum((-2, -1))
    np.testing.assert_allclose(kl(p, q), by_hand, rtol=1e-5)
    free = float(np.sort(by_hand)[1] + 1e-4)  # two of four lie below
    for part, (over_p, over_q) in enumerate([(False, True), (True, False)]):

        def total(p, q, part=part):
            return balanced_kl(p, q, free)[part].sum()

        np.testing.assert_allclose(balanced_kl(p, q, free)[part], np.maximum(by_hand, free), rtol=1e-5)
        grad_p, grad_q = jax.grad(total, argnums=(0, 1))(p, q)
        above = by_hand > free
        assert above.sum() == 2
        for gradient, reaches in ((grad_p, over_p), (grad_q, over_q)):
            assert (np.abs(gradient).sum((-2, -1)) > 0).tolist() == (above & reaches).tolist()


def test_sizes_by_name_are_those_published():
    assert WorldModelConfig("1m").sizes[:6] == (512, 64, 32, 4, 4, 64)
    assert WorldModelConfig("12m").sizes[:6] == (2048, 256, 32, 16, 16, 256)
    assert WorldModelConfig("200m").sizes[:6] == (8192, 1024, 32, 64, 64, 1024)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"size": "2m"}, "size must be one of 1m, 12m"),
        ({"deter": 10, "blocks": 4}, "blocks must divide deter: got 4 and 10"),
        ({"units": 0}, "units must be positive"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected(fields, match):
    with pytest.raises(UserError, match=match):
        WorldModelConfig(**fields)
