"""MuZero's loss against a loop over windows, its search, proposals and priorities."""

# pyright: reportArgumentType=false, reportOptionalCall=false, reportAttributeAccessIssue=false

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, Sample, Trajectory
from agents.muzero import (
    MuZeroConfig,
    build_muzero,
    loss,
    make_muzero,
    value_targets,
)
from agents.networks.config import NetworkConfig
from agents.networks.consistency import make_consistency_network
from agents.networks.muzero import expected_reward
from agents.networks.search_actions import absorbing_actions, make_search_actions
from agents.ops.two_hot import two_hot, two_hot_mean
from agents.ops.unrolled_targets import scale_gradient
from agents.search.gumbel import GumbelConfig
from agents.search.puct import PUCTConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec

ACTIONS, N, K, N_STEP = 3, 6, 2, 2
L = K + N_STEP
DISCRETE = EnvSpec("test", ArraySpec((4,), "float32"), DiscreteSpec(ACTIONS))
CONTINUOUS = EnvSpec("test", ArraySpec((4,), "float32"), ArraySpec((2,), "float32", -2.0, 2.0))
GRID = EnvSpec("test", ArraySpec((4,), "float32"), MultiDiscreteSpec((2,), (3, 4), (0, 0)))
MASKED = EnvSpec(
    "test",
    {"seen": ArraySpec((4,), "float32"), "legal": ArraySpec((ACTIONS,), "int8")},
    DiscreteSpec(ACTIONS),
    action_mask=("legal",),
)
NETWORK = NetworkConfig(hidden_sizes=(8,))
CONFIG = MuZeroConfig(
    gumbel=GumbelConfig(4),
    latent_size=5,
    value_limit=6,
    unroll_steps=K,
    n_step=N_STEP,
)


def windows(agent, spec, seed=0):
    random = np.random.default_rng(seed)
    terminated, truncated = random.random((2, L, N)) < 0.15
    truncated &= ~terminated
    valid = np.concatenate([np.ones((1, N), bool), ~(terminated | truncated)[:-1]])
    choices = {name: random.normal(size=(L, N, *leaf.shape)) for name, leaf in agent.extras.items()}
    policy = np.exp(choices["search_policy"])
    choices["search_policy"] = policy / policy.sum(-1, keepdims=True)
    extras = {name: values.astype(agent.extras[name].dtype) for name, values in choices.items()}
    discrete = isinstance(spec.action, DiscreteSpec)
    action = random.integers(0, ACTIONS, (L, N)) if discrete else random.uniform(-1, 1, (L, N, *spec.action.shape))
    return Trajectory(
        observation=random.normal(size=(L + 1, N, 4)).astype(np.float32),
        is_first=np.zeros((L + 1, N), bool),
        action=action.astype(spec.action.dtype),
        reward=random.normal(size=(L, N)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((L, N), np.int32),
        extras=extras,
    )


def cross_entropy(logits, target):
    logits = np.asarray(logits, np.float64)
    return -(np.asarray(target) * (logits - np.log(np.exp(logits).sum()))).sum()


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_loss_equals_a_loop_over_windows(spec):
    muzero = build_muzero(CONFIG, spec, NETWORK)
    network, net = muzero.net.init(jax.random.key(0)), muzero.net
    window = windows(make_muzero(CONFIG, spec, NETWORK), spec)
    targets = value_targets(muzero, network, window, jnp.int32(0))
    importance = np.linspace(0.5, 1.0, N).astype(np.float32)
    total, (metrics, priority) = loss(muzero, network, window, targets, importance)
    features = muzero.actions.features(window.action)
    sums = []
    for row in range(N):
        state, parts = net.represent(network, window.observation[0, row]), np.zeros(3)
        for k in range(K + 1):
            share, prediction = 1.0 if k == 0 else 1.0 / K, net.predict(network, state)
            value = cross_entropy(prediction.value, two_hot(targets.value[k, row], CONFIG.value_limit))
            parts[0] += share * targets.known[k, row] * value
            if targets.acted[k, row]:
                choices = {name: window.extras[name][k, row] for name in muzero.actions.extras}
                logs = muzero.actions.log_probs(prediction.policy, choices)
                parts[1] -= share * np.sum(window.extras["search_policy"][k, row] * np.asarray(logs))
            if k < K:
                state, reward = net.advance(network, state, features[k, row])
                target = two_hot(targets.reward[k, row], CONFIG.value_limit)
                parts[2] += targets.known[k, row] / K * cross_entropy(reward, target)
        sums.append(importance[row] * (CONFIG.value_coef * parts[0] + parts[1] + CONFIG.reward_coef * parts[2]))
    np.testing.assert_allclose(total, np.mean(sums), rtol=1e-5)
    first = two_hot_mean(net.predict(network, net.represent(network, window.observation[0])).value)
    np.testing.assert_allclose(priority, np.abs(first - targets.value[0]), rtol=1e-4, atol=1e-5)
    assert float(metrics["loss/total"]) == float(total)


def numpy_lstm(params, carry, x):
    """A step of an LSTM, gates input, forget, cell, output, as Hochreiter and Schmidhuber 1997 with the forget gate of 2000."""
    cell, hidden = carry
    gates = {name: x @ params[f"i{name}"]["kernel"] + hidden @ params[f"h{name}"]["kernel"] for name in "ifgo"}
    gates = {name: value + params[f"h{name}"]["bias"] for name, value in gates.items()}
    opened = {name: 1 / (1 + np.exp(-gates[name])) for name in "ifo"}
    cell = opened["f"] * cell + opened["i"] * np.tanh(gates["g"])
    return cell, opened["o"] * np.tanh(cell)


def test_value_prefixes_are_sums_of_rewards_of_an_lstm():
    muzero = build_muzero(dataclasses.replace(CONFIG, value_prefix=True), DISCRETE, NETWORK)
    net, network = muzero.net, muzero.net.init(jax.random.key(0))
    layers = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), network["dynamics"]["params"])
    layers["reward"]["kernel"] *= 100.0  # rewards that differ
    network["dynamics"]["params"] = jax.tree.map(jnp.float32, layers)
    state = net.represent(network, np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32))
    features = muzero.actions.features(jnp.arange(N) % ACTIONS)
    carry, total = (np.zeros((N, 8)), np.zeros((N, 8))), np.zeros(N)
    for step in range(2 * K):  # the memory starts anew after K steps
        if step == K:
            carry, total = (np.zeros((N, 8)), np.zeros((N, 8))), np.zeros(N)
        inputs = np.concatenate([np.asarray(state.latent), np.asarray(features)], axis=-1)
        hidden = np.tanh(inputs @ layers["MLP_0"]["Dense_0"]["kernel"] + layers["MLP_0"]["Dense_0"]["bias"])
        carry = numpy_lstm(layers["prefix"], carry, hidden)
        prefix = two_hot_mean(
            jnp.asarray(carry[1] @ layers["reward"]["kernel"] + layers["reward"]["bias"], jnp.float32)
        )
        before, (state, logits) = state, net.advance(network, state, features)
        np.testing.assert_allclose(expected_reward(before, logits), prefix - total, rtol=1e-3, atol=1e-4)
        total = np.asarray(prefix)
    assert np.ptp(total) > 0.01


def test_value_prefix_loss_has_summed_targets():
    config = dataclasses.replace(CONFIG, value_prefix=True, value_limit=1)
    muzero = build_muzero(config, DISCRETE, NETWORK)
    network, net = muzero.net.init(jax.random.key(0)), muzero.net
    window = windows(make_muzero(config, DISCRETE, NETWORK), DISCRETE)
    targets = value_targets(muzero, network, window, jnp.int32(0))
    targets = targets._replace(reward=5.0 * targets.reward)
    _, (metrics, _) = loss(muzero, network, window, targets, np.ones(N, np.float32))
    features, expected = muzero.actions.features(window.action), []
    for row in range(N):
        state, total, part = net.represent(network, window.observation[0, row]), 0.0, 0.0
        for k in range(K):
            state, logits = net.advance(network, state, features[k, row])
            total += float(targets.reward[k, row])
            part += targets.known[k, row] / K * cross_entropy(logits, two_hot(jnp.float32(total), config.value_limit))
        expected.append(part)
    np.testing.assert_allclose(metrics["loss/reward"], np.average(expected, weights=targets.known[0]), rtol=1e-5)
    numbers = np.concatenate([targets.value, np.cumsum(targets.reward, axis=0)])
    clamped = np.sqrt(np.abs(numbers) + 1) - 1 + 0.001 * np.abs(numbers) > 1
    share = np.average(clamped, weights=np.concatenate([targets.known, targets.known[:-1]]))
    assert 0 < share == pytest.approx(float(metrics["value/clamped_fraction"]), rel=1e-5)


def test_consistency_loss_equals_a_loop_over_windows():
    config = dataclasses.replace(CONFIG, consistency_coef=2.0, projection_size=6)
    muzero, plain = build_muzero(config, DISCRETE, NETWORK), build_muzero(CONFIG, DISCRETE, NETWORK)
    network, net = make_muzero(config, DISCRETE, NETWORK).init(jax.random.key(0)).params["network"], muzero.net
    window = windows(make_muzero(config, DISCRETE, NETWORK), DISCRETE)
    targets = value_targets(muzero, network, window, jnp.int32(0))
    one = np.ones(N, np.float32)
    total, (metrics, _) = loss(muzero, network, window, targets, one)
    features, expected = muzero.actions.features(window.action), []
    for row in range(N):
        state, part = net.represent(network, window.observation[0, row]), 0.0
        for k in range(K):
            state, _ = net.advance(network, state, features[k, row])
            ahead = dense_layers(network["consistency"]["projector"]["params"], state)
            ahead = dense_layers(network["consistency"]["predictor"]["params"], ahead)
            seen = net.represent(network, window.observation[k + 1, row])
            seen = dense_layers(network["consistency"]["projector"]["params"], seen)
            cosine = ahead @ seen / np.linalg.norm(ahead) / np.linalg.norm(seen)
            part -= targets.acted[k + 1, row] / K * cosine
        expected.append(part)
    mean = np.average(expected, weights=targets.known[0])
    np.testing.assert_allclose(metrics["loss/consistency"], mean, rtol=1e-4)
    np.testing.assert_allclose(total, loss(plain, network, window, targets, one)[0] + 2.0 * mean, rtol=1e-4)


def dense_layers(params, x):
    x = np.asarray(x, np.float64)
    count = sum(name.startswith("Dense") for name in params)
    for number in range(count):
        x = x @ np.asarray(params[f"Dense_{number}"]["kernel"]) + np.asarray(params[f"Dense_{number}"]["bias"])
        if number < count - 1:
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
            norm = params[f"LayerNorm_{number}"]
            x = np.maximum(x * np.asarray(norm["scale"]) + np.asarray(norm["bias"]), 0.0)
    return x


def test_no_gradient_flows_into_observed_states():
    consistency = make_consistency_network(5, 6)
    params = consistency.init(jax.random.key(0))
    predicted, observed = np.random.default_rng(0).normal(size=(2, N, 5)).astype(np.float32)
    gradient = jax.grad(lambda *states: consistency.loss(params, *states).sum(), argnums=(0, 1))(predicted, observed)
    assert np.abs(gradient[0]).min() > 0.0
    np.testing.assert_array_equal(gradient[1], np.zeros((N, 5)))


def test_search_and_update_with_efficientzero_parts():
    config = dataclasses.replace(
        CONFIG,
        consistency_coef=2.0,
        value_prefix=True,
        reanalyze_fraction=0.5,
        n_step_decay_fraction=0.3,
        total_updates=9,
    )
    agent = make_muzero(config, DISCRETE, NETWORK)
    state = agent.init(jax.random.key(0))
    sample = Sample(windows(agent, DISCRETE), jnp.full(N, 0.1), jnp.int32(10))
    sample = jax.jit(agent.data.transforms[0])(state.params, state.extra, sample, jax.random.key(1))
    learned, metrics, priority = jax.jit(agent.update)(state, sample, jax.random.key(2))
    changed = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()) > 0, state.params["network"], learned.params["network"]
    )
    assert all(any(jax.tree.leaves(part)) for part in changed.values())
    assert np.isfinite([*metrics.values(), *priority]).all()


def test_the_gradient_into_a_step_of_the_model_is_halved():
    assert float(jax.grad(lambda x: scale_gradient(x, 0.5) ** 2)(3.0)) == 3.0
    assert float(scale_gradient(jnp.array(3.0), 0.5)) == 3.0


@pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS, GRID], ids=["discrete", "continuous", "multi-discrete"])
def test_actions_after_the_end_of_an_episode_are_random_ones(spec):
    muzero, rows = build_muzero(CONFIG, spec, NETWORK), 3000
    leaf = spec.action
    recorded = jnp.full((L, rows, *leaf.shape), 1, leaf.dtype)
    acted = np.ones((K + 1, rows), np.float32)
    acted[1:, ::2] = 0.0
    window = Trajectory((), (), recorded, (), (), (), (), (), {})
    action = np.asarray(absorbing_actions(muzero.actions, window, acted, jax.random.key(0)).action)
    assert (action.dtype, action.shape) == (np.dtype(leaf.dtype), (K + 1, rows, *leaf.shape))
    assert (action[acted > 0] == 1).all()
    random = action[acted == 0]
    if isinstance(leaf, ArraySpec):
        np.testing.assert_allclose([random.min(), random.mean(), random.max()], [-2.0, 0.0, 2.0], atol=0.06)
        return
    sizes = [leaf.num_values] if isinstance(leaf, DiscreteSpec) else leaf.num_values
    for values, size in zip(random.reshape(len(random), -1).T, sizes, strict=True):
        np.testing.assert_allclose(np.bincount(values) / len(values), np.full(size, 1 / size), atol=0.04)


def test_returns_of_old_windows_bootstrap_earlier():
    config = dataclasses.replace(CONFIG, n_step_decay_fraction=0.3, total_updates=100)
    muzero, plain = build_muzero(config, DISCRETE, NETWORK), build_muzero(CONFIG, DISCRETE, NETWORK)
    shorter = build_muzero(dataclasses.replace(CONFIG, n_step=1), DISCRETE, NETWORK)
    network, window = muzero.net.init(jax.random.key(0)), windows(make_muzero(CONFIG, DISCRETE, NETWORK), DISCRETE)
    window.policy_version[:] = [50, 21, 20, 5, 40, 20]  # at update 50, 30 and more are old
    mixed = value_targets(muzero, network, window, jnp.int32(50)).value
    new, old = (value_targets(one, network, window, jnp.int32(50)).value for one in (plain, shorter))
    is_old = np.array([False, False, True, True, False, True])
    np.testing.assert_allclose(mixed, np.where(is_old, old, new), rtol=1e-6)
    assert np.abs(np.asarray(new - old))[:, is_old].max() > 1e-3
    with pytest.raises(UserError, match="need its number of updates"):
        value_targets(
            build_muzero(dataclasses.replace(config, total_updates=0), DISCRETE, NETWORK), network, window, jnp.int32(0)
        )


@pytest.mark.parametrize(
    "search",
    [{"gumbel": GumbelConfig(4)}, {"search": "puct", "gumbel": GumbelConfig(), "puct": PUCTConfig(4)}],
    ids=["gumbel", "puct"],
)
def test_illegal_actions_are_never_taken(search):
    config = dataclasses.replace(CONFIG, **search)
    agent = make_muzero(config, MASKED, NETWORK)
    params, random, rows = agent.init(jax.random.key(0)).params, np.random.default_rng(0), 64
    legal = random.random((rows, ACTIONS)) < 0.5
    legal[np.arange(rows), np.arange(rows) % ACTIONS] = True
    observation = {"seen": random.normal(size=(rows, 4)).astype(np.float32), "legal": legal.astype(np.int8)}
    keys = jax.random.split(jax.random.key(1), rows)
    for mode in Mode:
        action, extras, _ = jax.jit(agent.act, static_argnums=5)(
            params, observation, (), np.zeros(rows, bool), keys, mode
        )
        assert legal[np.arange(rows), np.asarray(action)].all()
        assert (np.asarray(extras["search_policy"])[~legal] < 1e-6).all()


def test_proposals_are_weighted_as_samples_of_the_policy():
    """Means under the prior among many proposals approach those of the policy itself, which a wider part proposes too."""
    count = 4000
    actions = make_search_actions(CONTINUOUS, count)
    parameters = jnp.array([[0.4, -0.3, -1.0, -0.5]])
    choices, logits = actions.propose(parameters, jax.random.split(jax.random.key(0), 1))
    weights, drawn = np.asarray(jax.nn.softmax(logits))[0], np.asarray(choices["search_actions"])[0]
    random = np.random.default_rng(0)
    mean, deviation = 3 * np.tanh(np.array([0.4, -0.3]) / 3), np.exp([-1.0, -0.5])
    direct = 2 * np.tanh(mean + deviation * random.normal(size=(100_000, 2)))
    np.testing.assert_allclose(weights @ drawn, direct.mean(0), atol=0.06)
    np.testing.assert_allclose(weights @ drawn**2, (direct**2).mean(0), atol=0.1)
    assert drawn.std(0).min() > 1.3 * direct.std(0).min()


@pytest.mark.parametrize("spec", [CONTINUOUS, GRID], ids=["continuous", "multi-discrete"])
def test_act_records_the_choices_and_takes_one_of_them(spec):
    agent = make_muzero(CONFIG, spec, NETWORK)
    params, rows = agent.init(jax.random.key(0)).params, 5
    observation, keys = np.ones((rows, 4), np.float32), jax.random.split(jax.random.key(1), rows)
    action, extras, _ = jax.jit(agent.act, static_argnums=5)(
        params, observation, (), np.zeros(rows, bool), keys, Mode.SAMPLE
    )
    assert {name: (values.shape[1:], values.dtype.name) for name, values in extras.items()} == {
        name: (leaf.shape, leaf.dtype) for name, leaf in agent.extras.items()
    }
    proposals = np.asarray(extras["search_actions"])
    assert all((proposals[row] == np.asarray(action)[row]).all(-1).any() for row in range(rows))
    np.testing.assert_allclose(extras["search_policy"].sum(-1), 1.0, atol=1e-5)


def test_initial_priorities_are_errors_of_the_recorded_values():
    agent, rollout = make_muzero(CONFIG, DISCRETE, NETWORK), 3
    steps = rollout + L - 1
    ones = np.ones((steps, 1), np.float32)
    never = np.zeros((steps, 1), bool)
    value = np.arange(steps, dtype=np.float32)[:, None]
    trajectory = Trajectory((), never, (), ones, never, never, ~never, never, {"root_value": value})
    g = CONFIG.discount
    expected = [abs(1 + g + g**2 * (t + 2) - t) for t in range(rollout)]
    np.testing.assert_allclose(agent.data.initial_priority(trajectory)[:, 0], expected, rtol=1e-5)


def test_gradient_steps_lower_the_loss():
    agent, muzero = make_muzero(CONFIG, DISCRETE, NETWORK), build_muzero(CONFIG, DISCRETE, NETWORK)
    state = agent.init(jax.random.key(0))
    window = jax.tree.map(jnp.asarray, windows(agent, DISCRETE))
    sample, step = Sample(window, jnp.ones(N), jnp.array(N)), jax.jit(agent.update)
    losses = []
    for number in range(60):
        state, metrics, _ = step(state, sample, jax.random.key(number))
        losses.append(float(metrics["loss/total"]))
    assert losses[-1] < 0.9 * losses[0]
    assert int(state.extra.num_gradient_steps) == 60
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.params["network"], state.extra.target)
    assert max(jax.tree.leaves(moved)) > 0  # the target is copied every 200 steps only
    assert (
        float(
            partial(loss, muzero)(
                state.params["network"],
                window,
                value_targets(muzero, state.extra.target, window, jnp.int32(0)),
                jnp.ones(N),
            )[0]
        )
        < losses[0]
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MuZeroConfig(unroll_steps=0), "unroll_steps must be at least 1"),
        (lambda: MuZeroConfig(reanalyze_fraction=1.5), "reanalyze_fraction"),
        (lambda: MuZeroConfig(n_step_decay_fraction=0.0), "n_step_decay_fraction must be positive"),
        (lambda: make_muzero(CONFIG, DISCRETE, NetworkConfig(core="gru")), "without a recurrent core"),
        (
            lambda: make_muzero(
                CONFIG, EnvSpec("t", ArraySpec((1,), "float32"), {"a": DiscreteSpec(2), "b": DiscreteSpec(2)}), NETWORK
            ),
            "an action of one array",
        ),
        (
            lambda: make_muzero(CONFIG, EnvSpec("t", ArraySpec((1,), "float32"), ArraySpec((1,), "float32")), NETWORK),
            "bounds",
        ),
    ],
)
def test_what_does_not_fit_is_rejected(make, says):
    with pytest.raises(UserError, match=says):
        make()
