"""Dreamer: acting and observing agree, rewards belong to the next state, gradients go where they should, losses by loops."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig, Sample, Trajectory
from agents.dreamer import DreamerConfig, build_dreamer, imagined_sequences, loss, make_dreamer, value_losses
from agents.networks.config import NetworkConfig
from agents.ops.symlog import symexp_atoms
from agents.world_models.model import (
    arrivals,
    model_losses,
    observe,
    predicted_discount,
    predicted_reward,
    split_params,
)
from agents.world_models.rssm import Latent
from agents.world_models.sizes import WorldModelConfig
from agents.world_models.windows import load_latent, observe_window
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.plan.cost.channel_bytes import params_bytes_of

ACTIONS, N, BURN_IN, LENGTH = 3, 4, 2, 5
STEPS = BURN_IN + LENGTH
DISCRETE = EnvSpec("test", ArraySpec((4,), "float32"), DiscreteSpec(ACTIONS))
CONTINUOUS = EnvSpec("test", ArraySpec((4,), "float32"), ArraySpec((2,), "float32", -2.0, 2.0))
CONFIG = DreamerConfig(
    replay=ReplayConfig(batch_size=N),
    model=WorldModelConfig(deter=16, hidden=8, classes=4, units=8, stoch=4, blocks=2),
    burn_in=BURN_IN,
    sequence_length=LENGTH,
    imagination_length=3,
    imagine_last=4,
    warmup_steps=10,
)
NETWORK = NetworkConfig()


def windows(dreamer, spec, seed=0, steps=STEPS):
    """Windows in which episodes end in both ways."""
    random = np.random.default_rng(seed)
    ended = random.random((steps, N)) < 0.3
    ended[1:] &= ~ended[:-1]
    terminated = ended & (random.random((steps, N)) < 0.5)
    valid = np.concatenate([np.ones((1, N), bool), ~ended[:-1]])
    discrete = isinstance(spec.action, DiscreteSpec)
    action = random.integers(0, ACTIONS, (steps, N)) if discrete else random.uniform(-2, 2, (steps, N, 2))
    model = dreamer.model
    stored = {
        "deter": random.normal(size=(N, model.sizes.deter)).astype(np.float32),
        "stoch": random.integers(0, model.sizes.classes, (N, model.sizes.stoch)).astype(np.int32),
        "action": model.actions.encode(jnp.asarray(action[0], spec.action.dtype)),
    }
    return Trajectory(
        observation=random.normal(size=(steps + 1, N, 4)).astype(np.float32),
        is_first=np.concatenate([np.zeros((1, N), bool), ~valid]),
        action=action.astype(spec.action.dtype),
        reward=random.normal(size=(steps, N)).astype(np.float32) * valid,
        terminated=terminated,
        truncated=ended & ~terminated,
        valid=valid,
        policy_version=np.zeros((steps, N), np.int32),
        extras={},
        agent_state=stored,
    )


def networks(state):
    """Parameters of all networks."""
    return {**state.params, **state.extra.other_params}


def randomized(params, seed=7):
    """Parameters without the zeros of last layers, which would hide terms."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + 0.2 * random.normal(size=leaf.shape).astype(np.float32), params)


@pytest.fixture(scope="module", params=[DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def case(request):
    dreamer, agent = build_dreamer(CONFIG, request.param, NETWORK), make_dreamer(CONFIG, request.param, NETWORK)
    state = agent.init(jax.random.key(0))
    acting, others = split_params(randomized(networks(state)))
    extra = dataclasses.replace(state.extra, other_params=others)
    return dreamer, agent, dataclasses.replace(state, params=acting, extra=extra), request.param


def test_acting_and_observing_reach_the_same_states(case):
    dreamer, agent, state, spec = case
    window = windows(dreamer, spec)
    model, sizes = dreamer.model, dreamer.model.sizes
    agent_state, reached, actions, noise = window.agent_state, [], [], []
    act = jax.jit(agent.act, static_argnums=5)
    first_latent, first_action = load_latent(model, agent_state), agent_state["action"]
    for t in range(STEPS):
        keys = jax.random.split(jax.random.key(t), N)
        inputs = (window.observation[t], agent_state, window.is_first[t], keys, Mode.SAMPLE)
        action, extras, agent_state = act(state.params, *inputs)
        assert extras == {}
        noise.append(
            jax.vmap(lambda key: jax.random.gumbel(jax.random.split(key)[0], (sizes.stoch, sizes.classes)))(keys)
        )
        reached.append(agent_state)
        actions.append(action)
    before = jnp.concatenate([first_action[None], model.actions.encode(jnp.stack(actions))[:-1]])
    inputs = (before, window.is_first[:-1], window.observation[:-1], jnp.stack(noise))
    observed = jax.jit(partial(observe, model))(networks(state), first_latent, *inputs).latent
    acted: Latent = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[load_latent(model, one) for one in reached])
    assert window.is_first[1:-1].any()
    np.testing.assert_allclose(observed.deter, acted.deter, atol=1e-5)
    np.testing.assert_allclose(observed.stoch, acted.stoch, atol=1e-5)


def test_an_episode_starts_from_nothing(case):
    dreamer, agent, state, spec = case
    window = windows(dreamer, spec)
    keys = jax.random.split(jax.random.key(0), N)
    for is_first in (True, False):
        outputs = [
            agent.act(state.params, window.observation[0], before, np.full(N, is_first), keys, Mode.GREEDY)[2]["deter"]
            for before in (window.agent_state, agent.initial_agent_state(N))
        ]
        assert np.allclose(*outputs) == is_first


def test_burn_in_renews_the_state_and_has_no_gradient(case):
    dreamer, _, state, spec = case
    window, key = windows(dreamer, spec), jax.random.key(3)
    observe_from = jax.jit(partial(observe_window, dreamer.model), static_argnums=2)
    whole, later = (observe_from(networks(state), window, burn_in, key) for burn_in in (0, BURN_IN))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[BURN_IN:], b, atol=1e-5), whole, later)

    def last_state(observation, burn_in):
        changed = dataclasses.replace(window, observation=observation)
        return observe_window(dreamer.model, networks(state), changed, burn_in, key).latent.deter[0].sum()

    for burn_in in (0, BURN_IN):
        gradient = jax.jit(jax.grad(last_state), static_argnums=1)(jnp.asarray(window.observation), burn_in)
        reached = np.abs(gradient).sum(axis=(1, 2)) > 0
        assert not reached[: burn_in + 1].any()


def test_only_present_agents_move_the_range_of_returns(case):
    dreamer, _, state, spec = case
    data = windows(dreamer, spec)
    absent = np.arange(N) == 1
    data = dataclasses.replace(data, valid=data.valid & ~absent, is_first=data.is_first & ~absent)
    params, compute = networks(state), jax.jit(partial(loss, dreamer))
    far = dataclasses.replace(data, observation=np.where(absent[:, None], 50.0, data.observation).astype(np.float32))
    results = [compute(params, state.extra, each, jax.random.key(5))[1] for each in (data, far)]
    (one, metrics, _), (other, far_metrics, _) = results
    chex.assert_trees_all_equal(one, other)
    assert float(metrics["value/return"]) == float(far_metrics["value/return"])
    large = dataclasses.replace(data, reward=np.where(data.valid, 1e9, 0.0).astype(np.float32))
    clamped = compute(params, state.extra, large, jax.random.key(5))[1][1]["value/clamped_fraction"]
    assert 0.0 == float(metrics["value/clamped_fraction"]) < 0.5 < float(clamped)


def test_a_two_step_mdp_is_learned_at_the_states_that_pay():
    """From state 0 every step leads to state 1, which pays 5 on arrival and ends the episode."""
    spec = EnvSpec("test", ArraySpec((1,), "float32"), DiscreteSpec(2))
    config = dataclasses.replace(CONFIG, learning_rate=3e-3, burn_in=0, sequence_length=6)
    dreamer, agent = build_dreamer(config, spec, NETWORK), make_dreamer(config, spec, NETWORK)
    places = np.arange(7)[:, None] + np.arange(N)
    first, rows = places % 2 == 0, np.full((6, N), True)
    steps = Trajectory(
        observation=np.where(first, 0.0, 1.0)[..., None].astype(np.float32),
        is_first=first,
        action=np.zeros((6, N), np.int32),
        reward=np.where(first[:-1], 5.0, 0.0).astype(np.float32),
        terminated=first[:-1],
        truncated=~rows,
        valid=first[:-1],
        policy_version=np.zeros((6, N), np.int32),
        extras={},
        agent_state=jax.device_get(agent.initial_agent_state(N)),
    )
    sample = Sample(steps, np.ones(N, np.float32) / N, np.int32(N))
    state, update = agent.init(jax.random.key(0)), jax.jit(agent.update)
    for number in range(300):
        state, _, _ = update(state, sample, jax.random.key(number))
    observed = observe_window(dreamer.model, networks(state), steps, 0, jax.random.key(9))
    features = observed.latent.features
    reward, discount = (f(dreamer.model, networks(state), features) for f in (predicted_reward, predicted_discount))
    np.testing.assert_allclose(reward, np.where(first[1:], 0.0, 5.0), atol=0.2)
    np.testing.assert_allclose(discount, np.where(first[1:], config.discount, 0.0), atol=0.05)
    # From state 0 the policy imagines the step to state 1, its reward of 5, and nothing after it.
    start = Latent(*(leaf.reshape((-1, *leaf.shape[2:])) for leaf in observed.latent))
    returns = imagined_sequences(dreamer, networks(state), start, jax.random.key(1)).returns[0].reshape(6, N)
    np.testing.assert_allclose(returns[first[1:]], 5.0, atol=0.4)


def two_hot(x):
    """Of one number, by a search among the atoms."""
    atoms, weights = symexp_atoms(255).astype(float), np.zeros(255)
    above = int(np.searchsorted(atoms, x))
    if atoms[above] == x:
        weights[above] = 1.0
        return weights
    share = (x - atoms[above - 1]) / (atoms[above] - atoms[above - 1])
    weights[above - 1], weights[above] = 1 - share, share
    return weights


def log_softmax(logits):
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def test_model_losses_are_those_by_hand(case):
    dreamer, _, state, spec = case
    window = windows(dreamer, spec)
    observed = observe_window(dreamer.model, networks(state), window, 0, jax.random.key(3))
    arrived = arrivals(window)
    losses = model_losses(dreamer.model, networks(state), observed, arrived, discount=0.9, free_nats=0.1)
    features = observed.latent.features
    reward = np.asarray(dreamer.model.reward(networks(state), features), float)
    logit = np.asarray(dreamer.model.continues(networks(state), features), float)
    for t in range(STEPS):
        for n in range(N):
            paid = window.reward[t, n] if window.valid[t, n] else 0.0
            np.testing.assert_allclose(
                losses["reward"][t, n], -(two_hot(paid) * log_softmax(reward[t, n])).sum(), rtol=1e-4
            )
            expected = 0.0 if window.terminated[t, n] else 0.9
            p = 1 / (1 + np.exp(-logit[t, n]))
            entropy = -(expected * np.log(p) + (1 - expected) * np.log(1 - p))
            np.testing.assert_allclose(losses["continue"][t, n], entropy, rtol=1e-4)


def test_values_are_learned_towards_returns_and_the_slow_network(case):
    dreamer, _, state, _ = case
    features = np.random.default_rng(1).normal(size=(3, dreamer.model.sizes.features)).astype(np.float32)
    returns, slow = np.array([-3.0, 0.0, 40.0], np.float32), randomized(networks(state)["value"], seed=2)
    got = value_losses(dreamer, networks(state), slow, features, returns)
    logits = np.asarray(dreamer.value(networks(state)["value"], features), float)
    slow_logits = np.asarray(dreamer.value(slow, features), float)
    for row in range(3):
        probs = np.exp(log_softmax(slow_logits[row]))
        slow_value = float((probs * symexp_atoms(255).astype(float)).sum())
        log_probs = log_softmax(logits[row])
        expected = -(two_hot(returns[row]) * log_probs).sum() - (two_hot(slow_value) * log_probs).sum()
        np.testing.assert_allclose(got[row], expected, rtol=2e-3)


def test_imagined_sequences_follow_the_model_and_its_returns(case):
    dreamer, _, state, spec = case
    params, model = networks(state), dreamer.model
    observed = observe_window(model, params, windows(dreamer, spec), BURN_IN, jax.random.key(3))
    start = Latent(*(leaf[-1] for leaf in observed.latent))
    imagined = jax.jit(partial(imagined_sequences, dreamer))(params, start, jax.random.key(4))
    length, deter = CONFIG.imagination_length, model.sizes.deter
    for t in range(length):
        here = Latent(imagined.features[t, :, :deter], imagined.features[t, :, deter:].reshape(start.stoch.shape))
        expected = model.advance(params, here, imagined.action[t])
        np.testing.assert_allclose(imagined.features[t + 1, :, :deter], expected, atol=1e-5)
    reward = np.asarray(predicted_reward(model, params, imagined.features), float)
    discount = np.asarray(predicted_discount(model, params, imagined.features), float)
    atoms = symexp_atoms(255).astype(float)
    logits = np.asarray(dreamer.value(params["value"], imagined.features), float)
    value = np.array([[np.exp(log_softmax(one)) @ atoms for one in row] for row in logits])
    later, weight = value[-1], np.cumprod(discount, axis=0)
    for t in reversed(range(length)):
        later = reward[t + 1] + discount[t + 1] * (0.05 * value[t + 1] + 0.95 * later)
        np.testing.assert_allclose(imagined.returns[t], later, rtol=1e-3, atol=1e-2 * np.abs(value).max() * 1e-2)
        np.testing.assert_allclose(imagined.weight[t], weight[t], rtol=1e-4)


def test_imagination_trains_only_policy_and_value(case):
    """Without the replayed value, whose gradient reaches the model as published, behavior leaves the model alone."""
    dreamer, _, state, spec = case
    window = windows(dreamer, spec)
    plain = dreamer._replace(config=dataclasses.replace(CONFIG, replay_value_coef=0.0))

    def gradient(bound):
        compute = jax.jit(jax.grad(partial(loss, bound), has_aux=True))
        return compute(networks(state), state.extra, window, jax.random.key(5))[0]

    with_behavior = gradient(plain)
    more_entropy = gradient(plain._replace(config=dataclasses.replace(plain.config, entropy_coef=1.0)))
    for name, part in with_behavior.items():
        same = jax.tree.all(jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-7), part, more_entropy[name]))
        assert same == (name != "policy"), name
    replayed = gradient(dreamer)
    moved = {
        name
        for name, part in replayed.items()
        if not jax.tree.all(jax.tree.map(np.array_equal, part, with_behavior[name]))
    }
    assert moved == {"encoder", "rssm", "value"}


def test_unrolled_loops_compute_the_same_gradients(case):
    dreamer, _, state, spec = case
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, unroll=4))
    unrolled = build_dreamer(config, spec, NETWORK)
    given = (networks(state), state.extra, windows(dreamer, spec), jax.random.key(5))
    compute = [jax.jit(jax.grad(partial(loss, bound), has_aux=True)) for bound in (dreamer, unrolled)]
    # Observing and imagining, forward and backward.
    assert [str(jax.make_jaxpr(one)(*given)).count("unroll=4") for one in compute] == [0, 4]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *(one(*given)[0] for one in compute))


def test_updates_warm_up_and_the_slow_value_follows(case):
    dreamer, agent, state, spec = case
    sample = Sample(windows(dreamer, spec), np.ones(N, np.float32) / N, np.int32(N))
    first, metrics, priority = jax.jit(agent.update)(state, sample, jax.random.key(0))
    assert (priority.shape, int(first.extra.num_gradient_steps)) == ((N,), 1)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), networks(first), networks(state))
    # A first step of LaProp is the sign of the gradient times the rate, a tenth of it at the first of ten steps.
    largest = max(jax.tree.leaves(moved))
    assert 0.9 < largest / (0.1 * CONFIG.learning_rate) < 1.1
    for slow, old, new in zip(
        *(jax.tree.leaves(tree) for tree in (first.extra.slow_value, state.extra.slow_value, networks(first)["value"])),
        strict=True,
    ):
        np.testing.assert_allclose(slow, 0.98 * np.asarray(old) + 0.02 * np.asarray(new), rtol=1e-4, atol=1e-7)
    assert np.isfinite(list(jax.device_get(metrics).values())).all()


def test_only_what_acts_is_published(case):
    _, _, state, spec = case
    assert set(state.params) == {"encoder", "rssm", "policy"}
    assert set(state.extra.other_params) == {"decoder", "reward", "continue", "value"}
    agent = make_dreamer(DreamerConfig(model=WorldModelConfig("12m")), spec, NETWORK)
    others = jax.eval_shape(agent.init, jax.random.key(0)).extra.other_params
    assert params_bytes_of(agent) < 28_000_000
    assert sum(4 * leaf.size for leaf in jax.tree.leaves(others)) > 12_000_000


def test_bfloat16_computes_with_float32_parameters():
    dreamer = build_dreamer(CONFIG, DISCRETE, NetworkConfig(dtype="bfloat16"))
    agent = make_dreamer(CONFIG, DISCRETE, NetworkConfig(dtype="bfloat16"))
    state = agent.init(jax.random.key(0))
    sample = Sample(windows(dreamer, DISCRETE), np.ones(N, np.float32) / N, np.int32(N))
    assert {leaf.dtype for leaf in jax.tree.leaves(networks(state))} == {np.dtype("float32")}
    after, metrics, _ = jax.jit(agent.update)(state, sample, jax.random.key(0))
    assert jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype, after, state))
    exact = jax.jit(make_dreamer(CONFIG, DISCRETE, NETWORK).update)(state, sample, jax.random.key(0))[1]
    for name in ("loss/reward", "loss/reconstruction"):
        np.testing.assert_allclose(metrics[name], exact[name], rtol=0.05)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"sequence_length": 1}, "sequence_length must be at least 2"),
        ({"imagine_last": 6}, r"imagine_last must lie in \[2, sequence_length\]"),
        ({"discount": 1.5}, "discount must lie in"),
        ({"warmup_steps": 0}, "warmup_steps must be at least 1"),
    ],
)
def test_invalid_fields_are_rejected(fields, match):
    with pytest.raises(UserError, match=match):
        dataclasses.replace(CONFIG, **fields)


@pytest.mark.parametrize("network", [NetworkConfig(core="gru"), NetworkConfig(torso="mine:Torso")])
def test_other_memories_and_torsos_are_rejected(network):
    with pytest.raises(UserError, match="Dreamer's world model encodes and remembers"):
        make_dreamer(CONFIG, DISCRETE, network)
