"""Recurrent cores: loops over the published equations, rows that forget, and networks that are built on them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.cores.recurrent import make_core, reset_rows
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

STEPS, ROWS, FEATURES, SIZE = 6, 3, 4, 5
SPEC = EnvSpec("e", ArraySpec((FEATURES,), "float32"), DiscreteSpec(3))


def drawn(init, *arguments):
    """Parameters of the shapes that `init` makes, with no bias at 0."""
    shapes, rng = jax.eval_shape(lambda: init(jax.random.key(0), *arguments)), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: (0.7 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)


def inputs():
    """Features, and beginnings of episodes: none in row 0, at once in row 1, and twice in row 2."""
    is_first = np.zeros((STEPS, ROWS), bool)
    is_first[0, 1] = is_first[2, 2] = is_first[5, 2] = True
    return np.random.default_rng(2).normal(size=(STEPS, ROWS, FEATURES)).astype(np.float32), is_first


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def lstm_step(weights, state, x):
    """Hochreiter and Schmidhuber 1997; Gers et al. 2000."""
    cell, hidden = state
    i, f, g, o = (
        x @ weights[f"i{gate}"]["kernel"] + hidden @ weights[f"h{gate}"]["kernel"] + weights[f"h{gate}"]["bias"]
        for gate in "ifgo"
    )
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    hidden = sigmoid(o) * np.tanh(cell)
    return (cell, hidden), hidden


def gru_step(weights, state, x):
    """Cho et al. 2014, with the reset gate behind the matrix product."""
    r, z = (
        sigmoid(x @ weights[f"i{gate}"]["kernel"] + weights[f"i{gate}"]["bias"] + state @ weights[f"h{gate}"]["kernel"])
        for gate in "rz"
    )
    candidate = state @ weights["hn"]["kernel"] + weights["hn"]["bias"]
    candidate = np.tanh(x @ weights["in"]["kernel"] + weights["in"]["bias"] + r * candidate)
    state = (1.0 - z) * candidate + z * state
    return state, state


CELLS = {"lstm": lstm_step, "gru": gru_step}


def by_loop(name, weights, features, state, is_first):
    """Outputs [T, B, H] and the state after them, one row and step at a time."""
    outputs, last = np.zeros((*features.shape[:2], SIZE)), []
    for row in range(features.shape[1]):
        of_row = jax.tree.map(lambda leaf, row=row: np.asarray(leaf[row], np.float64), state)
        for step in range(len(features)):
            if is_first[step, row]:
                of_row = jax.tree.map(np.zeros_like, of_row)
            of_row, outputs[step, row] = CELLS[name](weights, of_row, features[step, row])
        last.append(of_row)
    return outputs, jax.tree.map(lambda *rows: np.stack(rows), *last)


def full_state(net):
    """A state of rows that have seen something."""
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), net.initial_state(ROWS))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_core_is_the_one_of_its_paper(name):
    core = make_core(NetworkConfig(core=name, core_size=SIZE))
    params, (features, is_first), state = drawn(core.init, FEATURES), inputs(), full_state(core)
    outputs, after = jax.jit(core.apply)(params, features, state, is_first)
    expected, expected_after = by_loop(name, params["params"]["cell"], features, state, is_first)
    assert outputs.shape == (STEPS, ROWS, core.num_outputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5), after, expected_after)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_each_layer_sees_the_outputs_of_the_one_below(name):
    core = make_core(NetworkConfig(core=name, core_size=SIZE, core_layers=2))
    params, (features, is_first), state = drawn(core.init, FEATURES), inputs(), full_state(core)
    outputs, after = jax.jit(core.apply)(params, features, state, is_first)
    weights = params["params"]["cell"]
    below, below_after = by_loop(name, weights["cells_0"], features, state[0], is_first)
    expected, expected_after = by_loop(name, weights["cells_1"], below, state[1], is_first)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    want = (below_after, expected_after)
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5), after, want)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_core_unroll_equals_single_steps(name):
    core = make_core(NetworkConfig(core=name, core_size=SIZE))
    params, (features, is_first), state = drawn(core.init, FEATURES), inputs(), full_state(core)
    apply = jax.jit(core.apply)
    outputs, after = apply(params, features, state, is_first)
    for step in range(STEPS):
        one, state = apply(params, features[step : step + 1], state, is_first[step : step + 1])
        np.testing.assert_allclose(one[0], outputs[step], rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6), state, after)


def test_reset_rows_clears_only_rows_at_episode_start():
    state = {"a": jnp.arange(6.0).reshape(3, 2), "b": (jnp.ones((3, 2, 2)), jnp.array([4, 5, 6]))}
    got = reset_rows(jnp.array([False, True, False]), state)
    np.testing.assert_array_equal(got["a"], [[0, 1], [0, 0], [4, 5]])
    np.testing.assert_array_equal(got["b"][0].sum((1, 2)), [4, 0, 4])
    np.testing.assert_array_equal(got["b"][1], [4, 0, 6])
    assert got["b"][1].dtype == state["b"][1].dtype


@pytest.mark.parametrize("name", ["lstm", "gru", "gtrxl"])
def test_the_initial_state_is_zeros_of_every_row(name):
    state = make_core(NetworkConfig(core=name, core_size=8)).initial_state(4)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {4}
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state))


def test_make_core_rejects_unknown_names():
    with pytest.raises(UserError, match="expected one of lstm, gru, gtrxl, got 'none'"):
        make_core(NetworkConfig())
    with pytest.raises(UserError, match="core must be one of none, lstm, gru, gtrxl: got 'elman'"):
        NetworkConfig(core="elman")
    with pytest.raises(UserError, match="core_size must be positive: got 0"):
        NetworkConfig(core="lstm", core_size=0)


def linear(weights, x):
    return x @ weights["Dense_0"]["kernel"] + weights["Dense_0"]["bias"]


def branch_by_loop(name, params, observation, state, is_first):
    """Each head's outputs of a torso of one dense layer, a core and linear heads."""
    features = np.tanh(linear(params["torso"]["params"]["torso"], observation))
    remembered, after = by_loop(name, params["core"]["params"]["cell"], features, state, is_first)
    return {head: linear(weights, remembered) for head, weights in params["head"]["params"].items()}, after


def test_a_shared_torso_has_one_core_for_both_heads():
    net = make_actor_critic(NetworkConfig(hidden_sizes=(7,), shared_torso=True, core="gru", core_size=SIZE), SPEC)
    params, (observation, is_first) = drawn(net.init), inputs()
    state = net.initial_state(ROWS) + np.float32(0.5)
    policy, value, after = jax.jit(net.unroll)(params, observation, state, is_first)
    expected, expected_after = branch_by_loop("gru", params["shared"], observation, state, is_first)
    np.testing.assert_allclose(policy, expected["policy"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, expected["value"][..., 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after, expected_after, rtol=1e-4, atol=1e-5)


def test_separate_torsos_have_separate_cores():
    net = make_actor_critic(NetworkConfig(hidden_sizes=(7,), core="lstm", core_size=SIZE), SPEC)
    params, (observation, is_first) = drawn(net.init), inputs()
    state = full_state(net)
    assert sorted(state) == ["actor", "critic"]
    policy, value, after = jax.jit(net.unroll)(params, observation, state, is_first)
    for side, got in (("actor", policy), ("critic", value[..., None])):
        expected, expected_after = branch_by_loop("lstm", params[side], observation, state[side], is_first)
        np.testing.assert_allclose(got, expected["head"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(after[side][1], expected_after[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shared"), [("lstm", True), ("gtrxl", False)])
def test_step_equals_unroll_of_actor_critic(name, shared):
    config = NetworkConfig(hidden_sizes=(7,), shared_torso=shared, core=name, core_size=8, core_layers=1, core_memory=2)
    net = make_actor_critic(config, SPEC)
    params, (observation, is_first), state = drawn(net.init), inputs(), net.initial_state(ROWS)
    policy, _, after = jax.jit(net.unroll)(params, observation, state, is_first)
    step = jax.jit(net.step)
    for number in range(STEPS):
        outputs, state = step(params, observation[number], state, is_first[number])
        np.testing.assert_allclose(outputs, policy[number], rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5), state, after)


@pytest.mark.parametrize("shared", [True, False])
def test_recurrent_network_rejects_single_observations(shared):
    net = make_actor_critic(NetworkConfig(hidden_sizes=(7,), shared_torso=shared, core="lstm", core_size=SIZE), SPEC)
    params, (observation, _) = drawn(net.init), inputs()
    assert net.is_recurrent
    for function in (net.policy, net.value):
        with pytest.raises(TypeError, match="use `step` or `unroll`"):
            function(params, observation)


def test_feed_forward_network_is_stateless():
    net = make_actor_critic(NetworkConfig(hidden_sizes=(7,)), SPEC)
    params, (observation, is_first) = drawn(net.init), inputs()
    assert not net.is_recurrent
    assert net.initial_state(ROWS) == ()
    policy, value, after = net.unroll(params, observation, (), is_first)
    assert after == ()
    np.testing.assert_array_equal(policy, net.policy(params, observation))
    np.testing.assert_array_equal(value, net.value(params, observation))
