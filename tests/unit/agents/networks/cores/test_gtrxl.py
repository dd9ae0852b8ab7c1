"""GTrXL: equal to loops over the published equations, whether steps come one at a time or together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.networks.cores.gtrxl import GRUGate, GTrXLLayer, shift_to_positions, sinusoids, visible_steps
from agents.networks.cores.recurrent import make_core
from envpool_bridge.errors import UserError

CONFIG = NetworkConfig(core="gtrxl", core_size=8, core_layers=2, core_heads=2, core_memory=3)
STEPS, ROWS, FEATURES = 11, 3, 5
LAYER_NORM_EPSILON = 1e-6


def boundaries():
    """Row 0 goes on from the last call; row 1 begins twice in a row; row 2 begins at once and again in the middle."""
    is_first = np.zeros((STEPS, ROWS), bool)
    is_first[[5, 6], 1] = True
    is_first[[0, 8], 2] = True
    return is_first


def drawn(init, *arguments, seed=1):
    """Parameters of the shapes that `init` makes, with nothing at 0 or 1, where a bias left out would not show."""
    shapes, rng = jax.eval_shape(lambda: init(jax.random.key(0), *arguments)), np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def case():
    core = make_core(CONFIG)
    params = drawn(core.init, FEATURES)
    features = np.random.default_rng(2).normal(size=(STEPS, ROWS, FEATURES)).astype(np.float32)
    return jax.jit(core.apply), params, features


def in_calls(case, is_first, lengths, state):
    """Outputs of steps that come in calls of these lengths, and the state after them."""
    apply, params, features = case
    outputs, start = [], 0
    for length in lengths:
        part = slice(start, start + length)
        output, state = apply(params, features[part], state, is_first[part])
        outputs.append(np.asarray(output))
        start += length
    assert start == len(features)
    return np.concatenate(outputs), state


@pytest.mark.parametrize("lengths", [[STEPS], [2, 5, 4]])
def test_gtrxl_unroll_equals_single_steps(case, lengths):
    is_first, empty = boundaries(), make_core(CONFIG).initial_state(ROWS)
    # Each form goes on from its own memory of other steps, so that row 0 begins with a memory that is full.
    one_by_one = in_calls(case, np.zeros_like(is_first), [1] * STEPS, empty)[1]
    together = in_calls(case, np.zeros_like(is_first), lengths, empty)[1]
    expected, expected_state = in_calls(case, is_first, [1] * STEPS, one_by_one)
    outputs, state = in_calls(case, is_first, lengths, together)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(state["memory"], expected_state["memory"], atol=1e-5)
    np.testing.assert_array_equal(state["filled"], expected_state["filled"])
    np.testing.assert_array_equal(state["filled"], [3, 3, 3])


def test_gtrxl_memory_is_empty_at_episode_start(case):
    apply, params, features = case
    full = make_core(CONFIG).initial_state(ROWS)
    full = {"memory": full["memory"] + 2.0, "filled": full["filled"] + 3}
    is_first = np.zeros((2, ROWS), bool)
    is_first[:, 1] = True
    outputs, state = apply(params, features[:2], full, is_first)
    fresh, fresh_state = apply(params, features[1:2], make_core(CONFIG).initial_state(ROWS), np.zeros((1, ROWS), bool))
    np.testing.assert_allclose(outputs[1, 1], fresh[0, 1], atol=1e-5)
    np.testing.assert_allclose(state["memory"][1], fresh_state["memory"][1], atol=1e-5)
    np.testing.assert_array_equal(state["filled"], [3, 1, 3])
    assert np.abs(outputs[1, 0] - fresh[0, 0]).max() > 1e-3


def test_one_layer_sees_its_window_and_no_step_more():
    config = NetworkConfig(core="gtrxl", core_size=16, core_layers=1, core_heads=2, core_memory=3)
    core = make_core(config)
    params = drawn(core.init, FEATURES)
    features = np.random.default_rng(3).normal(size=(8, 1, FEATURES)).astype(np.float32)
    is_first = np.zeros((8, 1), bool)
    is_first[5] = True

    def reach(inputs):
        return core.apply(params, inputs, core.initial_state(1), is_first)[0][:, 0].sum(-1)

    seen = np.abs(jax.jit(jax.jacrev(reach))(features)).sum((2, 3)) > 0
    expected = np.zeros((8, 8), bool)
    for step in range(8):
        for other in range(max(0, step - 3), step + 1):
            expected[step, other] = (step < 5) == (other < 5)
    np.testing.assert_array_equal(seen, expected)


def test_visible_steps_are_of_the_episode_in_the_window():
    num_memory = 4
    is_first, filled = boundaries(), np.array([2, 4, 3], np.int32)
    expected = np.zeros((ROWS, STEPS, num_memory + STEPS), bool)
    for row in range(ROWS):
        for step in range(STEPS):
            for back in range(num_memory + 1):
                other = step - back
                begun = any(is_first[max(other + 1, 0) : step + 1, row])
                expected[row, step, num_memory + other] = other >= -filled[row] and not begun
    np.testing.assert_array_equal(visible_steps(filled, is_first, num_memory), expected)


def test_scores_by_distance_come_to_the_places_they_belong_to():
    by_window = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    placed = np.asarray(shift_to_positions(by_window))
    assert placed.shape == (2, 5, 8)
    for step in range(5):
        np.testing.assert_array_equal(placed[:, step, step : step + 4], by_window[:, step])


def layer_norm(x, weights):
    deviation = np.sqrt(np.mean((x - x.mean()) ** 2) + LAYER_NORM_EPSILON)
    return (x - x.mean()) / deviation * weights["scale"] + weights["bias"]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def gate(x, y, weights):
    w_r, w_z, w_g = np.split(weights["w_rzg"]["kernel"], 3, axis=1)
    u_r, u_z = np.split(weights["u_rz"]["kernel"], 2, axis=1)
    r = sigmoid(y @ w_r + x @ u_r)
    z = sigmoid(y @ w_z + x @ u_z - weights["bias"])
    h = np.tanh(y @ w_g + (r * x) @ weights["u_g"]["kernel"])
    return (1.0 - z) * x + z * h


def attention(places, step, seen, num_heads, weights):
    """What the step at a place attends to among the places that it sees, by Dai et al.'s four terms."""
    size = places.shape[1]
    part = size // num_heads
    kernels = {name: weights[name]["kernel"] for name in ("query", "key", "value", "relative")}
    heads = []
    for head in range(num_heads):
        mine = slice(head * part, (head + 1) * part)
        query = places[step] @ kernels["query"][:, mine]
        u, v = weights["content_bias"][head], weights["distance_bias"][head]
        scores = []
        for place in seen:
            waves = [10_000.0 ** (-i / (size / 2)) * (step - place) for i in range(size // 2)]
            relative = np.array([*np.sin(waves), *np.cos(waves)]) @ kernels["relative"][:, mine]
            key = places[place] @ kernels["key"][:, mine]
            scores.append((query @ key + query @ relative + u @ key + v @ relative) / np.sqrt(part))
        weight = np.exp(np.array(scores) - max(scores))
        values = [places[place] @ kernels["value"][:, mine] for place in seen]
        heads.append(sum(w * value for w, value in zip(weight / weight.sum(), values, strict=True)))
    return np.concatenate(heads) @ weights["output"]["kernel"]


def test_a_layer_is_the_one_of_the_papers():
    size, num_heads, num_memory, length = 6, 3, 2, 4
    rng = np.random.default_rng(4)
    x = rng.normal(size=(1, length, size)).astype(np.float32)
    memory = rng.normal(size=(1, num_memory, size)).astype(np.float32)
    is_first = np.array([[False], [False], [True], [False]])
    visible = np.asarray(visible_steps(np.array([1], np.int32), is_first, num_memory))
    layer = GTrXLLayer(num_heads)
    params = drawn(layer.init, x, memory, visible)
    got = jax.jit(layer.apply)(params, x, memory, visible)[0]
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    stream = np.concatenate([memory[0], x[0]]).astype(np.float64)
    places = np.stack([layer_norm(place, weights["attention_norm"]) for place in stream])
    for step, seen in enumerate([[1, 2], [1, 2, 3], [4], [4, 5]]):
        attended = attention(places, num_memory + step, seen, num_heads, weights["attention"])
        y = gate(stream[num_memory + step], np.maximum(attended, 0.0), weights["attention_gate"])
        wide = layer_norm(y, weights["dense_norm"]) @ weights["wide"]["kernel"] + weights["wide"]["bias"]
        narrow = np.maximum(wide, 0.0) @ weights["narrow"]["kernel"] + weights["narrow"]["bias"]
        expected = gate(y, np.maximum(narrow, 0.0), weights["dense_gate"])
        np.testing.assert_allclose(got[step], expected, rtol=1e-4, atol=1e-5)


def test_sinusoids_have_the_wavelengths_of_the_paper():
    found = sinusoids(np.array([0, 1, 7]), 4)
    angles = np.array([[0.0, 0.0], [1.0, 0.01], [7.0, 0.07]])
    np.testing.assert_allclose(found, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), rtol=1e-6)


@pytest.mark.slow  # to compile
def test_a_fresh_gate_lets_its_input_pass():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    params = GRUGate().init(jax.random.key(0), x, x)
    np.testing.assert_array_equal(params["params"]["bias"], np.full(4, 2.0))
    silent = jax.tree.map(jnp.zeros_like, params)
    silent["params"]["bias"] = params["params"]["bias"]
    np.testing.assert_allclose(GRUGate().apply(silent, x, x), x * (1 - 1 / (1 + np.exp(2.0))), rtol=1e-5)


@pytest.mark.slow  # to compile
def test_gtrxl_gradients_reach_parameters_and_not_memory(case):
    apply, params, features = case
    core = make_core(CONFIG)
    state = apply(params, features, core.initial_state(ROWS), boundaries())[1]

    def loss(params, memory):
        outputs, after = apply(params, features[:4], {**state, "memory": memory}, np.zeros((4, ROWS), bool))
        return jnp.sum(jnp.square(outputs)) + jnp.sum(after["memory"][:, :, -1])

    by_params, by_memory = jax.jit(jax.grad(loss, (0, 1)))(params, state["memory"])
    assert not np.any(by_memory)
    for path, gradient in jax.tree_util.tree_flatten_with_path(by_params)[0]:
        assert np.any(gradient), jax.tree_util.keystr(path)


def test_gtrxl_initial_state_is_zeros_of_documented_size():
    config = NetworkConfig(core="gtrxl")
    state = make_core(config).initial_state(2)
    assert state["memory"].shape == (2, config.num_core_layers, config.core_memory, config.core_size)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state))
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) // 2 == 32_772  # docs/concepts/networks.md


def test_gtrxl_invalid_sizes_are_rejected():
    with pytest.raises(UserError, match="core_heads must divide core_size: got 4 and 30; use a core_size of 28 or 32"):
        NetworkConfig(core="gtrxl", core_size=30)
    with pytest.raises(UserError, match="core_heads must divide core_size: got 4 and 3; use a core_size of 4"):
        NetworkConfig(core="gtrxl", core_size=3)
    for name in ("core_size", "core_layers", "core_heads", "core_memory"):
        with pytest.raises(UserError, match=f"{name} must be positive: got 0"):
            NetworkConfig(core="gtrxl", **{name: 0})
    assert NetworkConfig(core="lstm", core_size=30).core_size == 30
