"""Stochastic MuZero's loss against a loop over windows, its outcomes of chance, and its search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, Sample, Trajectory
from agents.networks.config import NetworkConfig
from agents.ops.two_hot import two_hot, two_hot_mean
from agents.search.puct import PUCTConfig
from agents.stochastic_muzero import (
    StochasticMuZeroConfig,
    after_action,
    after_chance,
    build_stochastic_muzero,
    encoded_outcomes,
    loss,
    make_stochastic_muzero,
    num_used,
    value_targets,
)
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

ACTIONS, OUTCOMES, N, K, N_STEP = 3, 4, 6, 2, 2
L = K + N_STEP
SPEC = EnvSpec("test", ArraySpec((4,), "float32"), DiscreteSpec(ACTIONS))
MASKED = EnvSpec(
    "test",
    {"seen": ArraySpec((4,), "float32"), "legal": ArraySpec((ACTIONS,), "int8")},
    DiscreteSpec(ACTIONS),
    action_mask=("legal",),
)
NETWORK = NetworkConfig(hidden_sizes=(8,))
CONFIG = StochasticMuZeroConfig(
    puct=PUCTConfig(6), num_outcomes=OUTCOMES, latent_size=5, value_limit=6, unroll_steps=K, n_step=N_STEP
)


def windows(seed=0):
    random = np.random.default_rng(seed)
    terminated, truncated = random.random((2, L, N)) < 0.15
    truncated &= ~terminated
    policy = np.exp(random.normal(size=(L, N, ACTIONS))).astype(np.float32)
    return Trajectory(
        observation=random.normal(size=(L + 1, N, 4)).astype(np.float32),
        is_first=np.zeros((L + 1, N), bool),
        action=random.integers(0, ACTIONS, (L, N)).astype(np.int32),
        reward=random.normal(size=(L, N)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=np.concatenate([np.ones((1, N), bool), ~(terminated | truncated)[:-1]]),
        policy_version=np.zeros((L, N), np.int32),
        extras={
            "search_policy": policy / policy.sum(-1, keepdims=True),
            "root_value": random.normal(size=(L, N)).astype(np.float32),
        },
    )


def cross_entropy(logits, target):
    logits = np.asarray(logits, np.float64)
    return -(np.asarray(target) * (logits - np.log(np.exp(logits).sum()))).sum()


def test_loss_equals_a_loop_over_windows():
    muzero = build_stochastic_muzero(CONFIG, SPEC, NETWORK)
    net, network = muzero.net, muzero.net.init(jax.random.key(0))
    window, key = windows(), jax.random.key(5)
    targets = value_targets(muzero, network, window)
    importance = np.linspace(0.5, 1.0, N).astype(np.float32)
    total, (metrics, priority) = loss(muzero, network, window, targets, importance, key)
    _, outcomes = encoded_outcomes(muzero, network, window, targets.acted[:K], key)
    sums, atoms = [], CONFIG.value_limit
    assert 0 < targets.acted[:K].sum() < K * N  # some windows end
    for row in range(N):
        state, parts = net.represent(network, window.observation[0, row]), dict.fromkeys("pvraoc", 0.0)
        for k in range(K + 1):
            share, prediction = 1.0 if k == 0 else 1.0 / K, net.predict(network, state)
            known, acted = float(targets.known[k, row]), float(targets.acted[k, row])
            value = two_hot(targets.value[k, row], atoms)
            parts["v"] += share * known * cross_entropy(prediction.value, value)
            target = window.extras["search_policy"][k, row]
            parts["p"] += share * acted * cross_entropy(prediction.policy, target)
            if k < K:
                scores = net.encode(network, window.observation[k, row], window.observation[k + 1, row])
                probability = np.exp(scores) / np.exp(scores).sum()
                after = net.decide(network, state, np.eye(ACTIONS)[window.action[k, row]])
                parts["a"] += known / K * cross_entropy(after.value, value)
                parts["o"] += acted / K * cross_entropy(after.outcome, outcomes[k, row])
                parts["c"] += acted / K * np.square(outcomes[k, row] - probability).sum()
                state, reward = net.advance(network, after.latent, outcomes[k, row])
                parts["r"] += known / K * cross_entropy(reward, two_hot(targets.reward[k, row], atoms))
        weighted = parts["p"] + CONFIG.value_coef * (parts["v"] + parts["a"]) + parts["r"] + parts["o"] + parts["c"]
        sums.append(importance[row] * weighted)
    np.testing.assert_allclose(total, np.average(sums, weights=targets.known[0]), rtol=1e-5)
    first = two_hot_mean(net.predict(network, net.represent(network, window.observation[0])).value)
    np.testing.assert_allclose(priority, np.abs(first - targets.value[0]), rtol=1e-4, atol=1e-5)
    assert float(metrics["model/outcomes"]) == len(np.unique(np.asarray(outcomes).argmax(-1)[targets.acted[:K] > 0]))


def test_outcomes_are_drawn_from_the_encoders_probabilities():
    muzero = build_stochastic_muzero(CONFIG, SPEC, NETWORK)
    network, many = muzero.net.init(jax.random.key(0)), 2_000
    first = windows().observation[:2, :1]
    window = Trajectory(np.repeat(first, many, axis=1), *[()] * 8)  # only observations are read
    acted = jnp.ones((1, many))
    probabilities, outcomes = encoded_outcomes(muzero, network, window, acted, jax.random.key(1))
    np.testing.assert_array_equal(np.sort(outcomes, axis=-1)[0, :, :-1], 0.0)
    np.testing.assert_allclose(outcomes.mean(1), probabilities[:, 0], atol=0.05)
    assert float(num_used(outcomes, acted)) == OUTCOMES

    def weighted(network, acted):
        return (encoded_outcomes(muzero, network, window, acted, jax.random.key(1))[1] * jnp.arange(OUTCOMES)).sum()

    moved, still = jax.grad(weighted)(network, acted), jax.grad(weighted)(network, 0.0 * acted)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(moved["encoder"])) > 0.0
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(still)) == 0.0


def test_half_steps_of_the_search_are_those_of_the_network():
    muzero = build_stochastic_muzero(CONFIG, SPEC, NETWORK)
    net, network, key = muzero.net, muzero.net.init(jax.random.key(0)), jax.random.key(1)
    latent = net.represent(network, windows().observation[0])
    action, outcome = jnp.arange(N) % ACTIONS, jnp.arange(N) % OUTCOMES
    after = after_action(muzero, network, latent, action, key)
    expected = net.decide(network, latent, np.eye(ACTIONS, dtype=np.float32)[action])
    np.testing.assert_allclose(after.logits, expected.outcome, rtol=1e-6)
    np.testing.assert_allclose(after.value, two_hot_mean(expected.value), rtol=1e-6)
    step = after_chance(muzero, network, after.latent, outcome, key)
    state, reward = net.advance(network, expected.latent, np.eye(OUTCOMES, dtype=np.float32)[outcome])
    np.testing.assert_allclose(step.reward, two_hot_mean(reward), rtol=1e-6)
    np.testing.assert_allclose(step.value, two_hot_mean(net.predict(network, state).value), rtol=1e-6)
    np.testing.assert_allclose(step.discount, CONFIG.discount)
    assert float(state.min()) >= 0.0
    assert float(state.max()) <= 1.0


def test_illegal_actions_are_never_taken():
    agent = make_stochastic_muzero(CONFIG, MASKED, NETWORK)
    params, random, rows = agent.init(jax.random.key(0)).params, np.random.default_rng(0), 128
    legal = random.random((rows, ACTIONS)) < 0.5
    legal[np.arange(rows), np.arange(rows) % ACTIONS] = True
    observation = {"seen": random.normal(size=(rows, 4)).astype(np.float32), "legal": legal.astype(np.int8)}
    act = jax.jit(agent.act, static_argnums=5)
    for mode in Mode:
        keys = jax.random.split(jax.random.key(1), rows)
        action, extras, _ = act(params, observation, (), np.zeros(rows, bool), keys, mode)
        assert legal[np.arange(rows), np.asarray(action)].all()
        assert (np.asarray(extras["search_policy"])[~legal] < 1e-6).all()


def test_an_update_changes_every_network():
    agent = make_stochastic_muzero(CONFIG, SPEC, NETWORK)
    state = agent.init(jax.random.key(0))
    sample = Sample(windows(), jnp.full(N, 0.1), jnp.int32(10))
    learned, metrics, priority = jax.jit(agent.update)(state, sample, jax.random.key(2))
    changed = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()) > 0, state.params["network"], learned.params["network"]
    )
    assert {name: any(jax.tree.leaves(part)) for name, part in changed.items()} == dict.fromkeys(changed, True)
    assert set(changed) == {"representation", "dynamics", "prediction", "afterstate", "encoder"}
    assert np.isfinite([*metrics.values(), *priority]).all()
    assert int(learned.extra.num_gradient_steps) == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: StochasticMuZeroConfig(num_outcomes=0), "num_outcomes must be at least 1"),
        (lambda: StochasticMuZeroConfig(commitment_coef=-1.0), "commitment_coef"),
        (lambda: make_stochastic_muzero(CONFIG, SPEC, NetworkConfig(core="gru")), "without a recurrent core"),
        (
            lambda: make_stochastic_muzero(
                CONFIG, EnvSpec("t", ArraySpec((1,), "float32"), ArraySpec((2,), "float32", -1.0, 1.0)), NETWORK
            ),
            "needs one Discrete action",
        ),
    ],
)
def test_what_does_not_fit_is_rejected(make, says):
    with pytest.raises(UserError, match=says):
        make()
