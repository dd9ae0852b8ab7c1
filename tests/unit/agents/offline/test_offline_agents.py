"""Offline algorithms against formulas written out: one gradient step from the same networks."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.api import Mode, ReplayConfig
from agents.catalog import AGENTS
from agents.dqn import build_dqn
from agents.offline.awac import AWACConfig, build_awac, make_awac
from agents.offline.bc import BCConfig, make_bc
from agents.offline.cql import CQL, CQLConfig, make_cql, soft_maximum
from agents.offline.discrete_bcq import DiscreteBCQConfig, make_discrete_bcq
from agents.offline.discrete_cql import DiscreteCQLConfig, make_discrete_cql
from agents.offline.iql import IQLConfig, build_iql, make_iql
from agents.offline.rebrac import ReBRACConfig, make_rebrac
from agents.offline.td3_bc import TD3BCConfig, make_td3_bc
from agents.ops.n_step import first_n_step_transitions
from agents.ops.optimizers import OptimizerConfig
from agents.sac import build_sac, sample_actions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from tests.support.offline_steps import (
    DISCRETE,
    KEY,
    NETWORK,
    RATE,
    REPLAY,
    SPEC,
    D,
    N,
    adam,
    assert_close,
    mean,
    parts,
    sample_of,
    start,
)

RAW = False  # observations as they are


def test_bc_maximizes_the_likelihood_of_recorded_actions():
    agent = make_bc(BCConfig(REPLAY, RAW, learning_rate=RATE), DISCRETE, NETWORK)
    state, sample = start(agent), sample_of(DISCRETE)
    observation, _, _, _, _, weight = parts(sample)

    def loss(params):
        weights = params["branch"]["params"]
        names = sorted(weights)
        assert names == ["head", "torso"] or len(names) == 2, names
        hidden = jnp.tanh(observation @ weights[names[1]]["Dense_0"]["kernel"] + weights[names[1]]["Dense_0"]["bias"])
        head = weights[names[0]]["Dense_0"]
        logits = hidden @ head["kernel"] + head["bias"]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), sample.trajectory.action[0][:, None], axis=1)[:, 0]
        return -mean(chosen, weight)

    after, metrics, _ = jax.jit(agent.update)(state, sample, KEY)
    value, gradient = jax.jit(jax.value_and_grad(loss))(state.params)
    assert_close(metrics["loss/total"], value)
    assert_close(after.params, adam(state.params, gradient))


def test_bc_of_continuous_actions_approaches_them():
    agent = make_bc(BCConfig(REPLAY, learning_rate=0.02), SPEC, NETWORK)
    state, sample = agent.init(jax.random.key(0)), sample_of()
    update = jax.jit(agent.update)
    for _ in range(2000):
        state, _, _ = update(state, sample, KEY)
    keys = jax.random.split(KEY, N)
    action, _, _ = agent.act(state.params, sample.trajectory.observation[0], (), jnp.zeros(N, bool), keys, Mode.GREEDY)
    np.testing.assert_allclose(action[:-1], sample.trajectory.action[0][:-1], atol=0.3)


@pytest.mark.parametrize("learner", ["bc", "airl"])
def test_squashed_policies_learn_recorded_bounds_from_within(learner):
    spec = EnvSpec("test", SPEC.observation, {"move": ArraySpec((D,), "float32", -2.0, 2.0), "turn": DiscreteSpec(3)})
    network, observation = dataclasses.replace(NETWORK, squash=True), sample_of().trajectory.observation
    bc = make_bc(BCConfig(REPLAY, RAW), spec, network)
    agent: Any = bc if learner == "bc" else AGENTS["ppo"].make(AGENTS["ppo"].config(), spec, network)
    state = jax.jit(agent.init)(jax.random.key(0))

    @jax.jit
    def loss(move):
        action = {"move": jnp.full((1, N, D), move), "turn": jnp.zeros((1, N), jnp.int32)}
        if learner == "bc":
            steps = dataclasses.replace(sample_of().trajectory, action=action, observation=observation)
            return agent.update(state, dataclasses.replace(sample_of(), trajectory=steps), KEY)[1]["loss/total"]
        return -agent.log_prob(state.params, observation[0], jax.tree.map(lambda leaf: leaf[0], action)).mean()

    # log(1 - tanh(x)^2) is -6.2 at 0.999 and -13.1 at the guard of a policy's own actions, 1 - 1e-6.
    bound, within, less, center = (float(loss(x)) for x in (2.0, 1.998, 1.99, 0.0))
    assert bound == pytest.approx(within, rel=1e-5)
    assert within - center == pytest.approx(D * (np.arctanh(0.999) ** 2 / 2 - 6.2151), rel=0.05)
    assert less != pytest.approx(within, rel=1e-2)


@pytest.mark.parametrize("deterministic", [False, True])
def test_iql_step_is_that_of_its_equations(deterministic):
    config = IQLConfig(
        REPLAY,
        RAW,
        discount=0.9,
        tau=0.25,
        expectile=0.8,
        inverse_temperature=2.0,
        max_weight=3.0,
        deterministic=deterministic,
        actor_learning_rate=RATE,
        critic_learning_rate=RATE,
        value_learning_rate=RATE,
    )
    agent, iql = make_iql(config, SPEC, NETWORK), build_iql(config, SPEC, NETWORK)
    state, sample = start(agent), sample_of()
    observation, action, reward, going, following, weight = parts(sample)

    def value_loss(params, recorded):
        u = recorded - iql.value.values(params, observation)
        return mean(jnp.abs(0.8 - (u < 0)) * u**2, weight)

    def actor_loss(params, advantage):
        centre = iql.actor.mean(params, observation)
        log_std = jnp.clip(params["log_std"], -5.0, 2.0)
        density = -0.5 * ((action - centre) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        density = -((action - centre) ** 2) if deterministic else density
        return -mean(jnp.minimum(jnp.exp(2.0 * advantage), 3.0) * density.sum(-1), weight)

    def critic_loss(params, goal):
        errors = iql.critics.values(params, observation, action) - goal
        return 0.5 * sum(mean(errors[number] ** 2, weight) for number in range(2))

    @jax.jit
    def reference(actor, critic, target, value):
        recorded = jnp.min(iql.critics.values(target, observation, action), axis=0)
        value = adam(value, jax.grad(value_loss)(value, recorded))
        actor = adam(actor, jax.grad(actor_loss)(actor, recorded - iql.value.values(value, observation)))
        goal = reward + 0.9 * going * iql.value.values(value, following)
        errors = jnp.abs(iql.critics.values(critic, observation, action) - goal).mean(0) * weight
        critic = adam(critic, jax.grad(critic_loss)(critic, goal))
        target = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, target, critic)
        return actor, critic, target, value, errors

    extra = state.extra
    after, _, priority = jax.jit(agent.update)(state, sample, KEY)
    actual = (after.params, after.extra.critic, after.extra.target_critic, after.extra.value, priority)
    assert_close(actual, reference(state.params, extra.critic, extra.target_critic, extra.value))

    keys, first = jax.random.split(KEY, N), jnp.zeros(N, bool)
    greedy, sampled = (
        agent.act(state.params, observation, (), first, keys, mode)[0] for mode in (Mode.GREEDY, Mode.SAMPLE)
    )
    assert np.array_equal(greedy, sampled) == deterministic


def test_td3_bc_actor_is_pulled_to_recorded_actions():
    config = TD3BCConfig(REPLAY, RAW, policy_delay=1, target_noise=0.0, actor_learning_rate=RATE, value_weight=1.5)
    agent = make_td3_bc(config, SPEC, NETWORK)
    from agents.td3 import build_td3

    td3 = build_td3(config, SPEC, NETWORK)
    state, sample = start(agent), sample_of()
    observation, action, _, _, _, weight = parts(sample)
    after, metrics, _ = jax.jit(agent.update)(state, sample, KEY)

    def loss(actor):
        chosen = td3.actor.action(actor, observation)
        value = td3.critics.values(after.extra.critic, observation, chosen)[0]
        scale = 1.5 / jax.lax.stop_gradient(mean(jnp.abs(value), weight))
        return -scale * mean(value, weight) + mean(((chosen - action) ** 2).mean(-1), weight)

    value, gradient = jax.jit(jax.value_and_grad(loss))(state.params["actor"])
    assert_close(metrics["loss/actor"], value)
    assert_close(after.params["actor"], adam(state.params["actor"], gradient))


def test_awac_step_is_that_of_its_equations():
    config = AWACConfig(
        REPLAY, RAW, discount=0.9, temperature=0.5, max_weight=4.0, actor_learning_rate=RATE, critic_learning_rate=RATE
    )
    agent, awac = make_awac(config, SPEC, NETWORK), build_awac(config, SPEC, NETWORK)
    state, sample = start(agent), sample_of()
    observation, action, reward, going, following, weight = parts(sample)
    target_key, baseline_key = jax.random.split(KEY)

    def sampled_value(critic, at, key):
        noise = jnp.stack([jax.random.normal(one, (D,)) for one in jax.random.split(key, N)])
        std = jnp.exp(jnp.clip(state.params["log_std"], -5.0, 2.0))
        chosen = jnp.clip(awac.actor.mean(state.params, at) + std * noise, -1.0, 1.0)
        return jnp.min(awac.critics.values(critic, at, chosen), axis=0)

    def critic_loss(params, goal):
        errors = awac.critics.values(params, observation, action) - goal
        return 0.5 * sum(mean(errors[number] ** 2, weight) for number in range(2))

    def actor_loss(params, advantage):
        log_prob = awac.actor.log_prob(params, observation, action)
        return -mean(jnp.minimum(jnp.exp(advantage / 0.5), 4.0) * log_prob, weight)

    @jax.jit
    def reference(actor, critic, target):
        goal = reward + 0.9 * going * sampled_value(target, following, target_key)
        critic = adam(critic, jax.grad(critic_loss)(critic, goal))
        advantage = jnp.min(awac.critics.values(critic, observation, action), axis=0)
        advantage -= sampled_value(critic, observation, baseline_key)
        return adam(actor, jax.grad(actor_loss)(actor, advantage)), critic

    after, _, _ = jax.jit(agent.update)(state, sample, KEY)
    expected = reference(state.params, state.extra.critic, state.extra.target_critic)
    assert_close((after.params, after.extra.critic), expected)


def test_cql_weighs_windows_by_their_probability():
    prioritized = dataclasses.replace(REPLAY, priority_exponent=0.6)
    config = CQLConfig(prioritized, critic_learning_rate=RATE, total_updates=10, importance_sampling_exponent=1.0)
    config = dataclasses.replace(config, conservative_weight=2.0, num_sampled_actions=3)
    agent = make_cql(config, SPEC, NETWORK)
    state, even = start(agent), sample_of()
    uneven = dataclasses.replace(even, probability=jnp.array([0.4, 0.1, 0.1, 0.1, 0.2, 0.1]))
    losses = [jax.jit(agent.update)(state, sample, KEY)[1]["loss/critic"] for sample in (even, uneven)]
    cql = CQL(config, build_sac(config, SPEC, NETWORK))
    observation, action, _, _, _, weight = parts(even)
    batch = first_n_step_transitions(even.trajectory, config.discount, 1)
    batch = batch._replace(action=cql.sac.actions.to_unit(batch.action))
    target_key, conservative_key, _ = jax.random.split(KEY, 3)
    following, _ = sample_actions(cql.sac, state.params["actor"], batch.next_observation, target_key)
    value = cql.sac.critics.values(state.extra.target_critic, batch.next_observation, following)
    error = cql.sac.critics.values(state.extra.critic, observation, action) - (
        batch.reward + batch.discount * jnp.min(value, axis=0)
    )
    importance = np.array([0.25, 1.0, 1.0, 1.0, 0.5, 1.0])
    gap = soft_maximum(cql, state.extra.critic, state.params["actor"], batch, conservative_key)
    gap -= cql.sac.critics.values(state.extra.critic, observation, action)
    each = 0.5 * jnp.square(error) + 2.0 * gap
    difference = sum(mean((importance - 1.0) * each[number], weight) for number in range(2))
    assert_close(losses[1] - losses[0], difference)


PRIORITIZED = {
    "td3_bc": (make_td3_bc, TD3BCConfig, SPEC, "policy/distance"),
    "rebrac": (make_rebrac, ReBRACConfig, SPEC, "policy/distance"),
    "discrete_cql": (make_discrete_cql, DiscreteCQLConfig, DISCRETE, "loss/conservative"),
    "discrete_bcq": (make_discrete_bcq, DiscreteBCQConfig, DISCRETE, "loss/behavior"),
}


@pytest.mark.parametrize("name", PRIORITIZED)
def test_terms_of_recorded_actions_are_weighed_too(name):
    """Each of five windows in turn is so probable that it weighs nothing: the terms without one add up to four times the whole."""
    make, config, spec, metric = PRIORITIZED[name]
    replay = dataclasses.replace(REPLAY, priority_exponent=0.6)
    agent = make(config(replay, total_updates=10, importance_sampling_exponent=1.0), spec, NETWORK)
    sample, state, update = sample_of(spec), start(agent), jax.jit(agent.update)
    if name == "rebrac":
        window = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]]), sample.trajectory)
        sample = dataclasses.replace(sample, trajectory=window)
    probabilities = [jnp.full(N, 1e-6), *(jnp.full(N, 1e-6).at[number].set(1.0) for number in range(N - 1))]
    whole, *parts = (
        float(update(state, dataclasses.replace(sample, probability=each), KEY)[1][metric]) for each in probabilities
    )
    assert sum(parts) == pytest.approx((N - 2) * whole, rel=1e-3)


def test_algorithms_without_importance_weights_reject_priorities():
    tried = set()
    for name, algorithm in AGENTS.items():
        fields = {field.name for field in dataclasses.fields(algorithm.config)}
        if "replay" in fields and "importance_sampling_exponent" not in fields and name != "dreamer":  # by choice
            with pytest.raises(UserError, match=r"no importance weights .* replay.priority_exponent 0, got 0.6; use 0"):
                algorithm.config(replay=ReplayConfig(priority_exponent=0.6))
            tried.add(name)
    assert tried == {"alphazero", "awac", "bc", "bcq", "decision_transformer", "iql"}


@pytest.mark.parametrize(("make", "config"), [(make_td3_bc, TD3BCConfig(REPLAY)), (make_rebrac, ReBRACConfig(REPLAY))])
def test_a_batch_of_windows_that_do_not_count_is_finite(make, config):
    agent, sample = make(config, SPEC, NETWORK), sample_of()
    window = sample.trajectory
    if make is make_rebrac:  # its windows have one more step
        window = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[-1:]]), window)
    empty = dataclasses.replace(window, valid=jnp.zeros_like(window.valid))
    _, metrics, _ = jax.jit(agent.update)(start(agent), dataclasses.replace(sample, trajectory=empty), KEY)
    assert all(np.isfinite(value) for value in metrics.values()), metrics


def test_critics_of_rebrac_have_layer_norm_by_their_own_option():
    network = dataclasses.replace(NETWORK, layer_norm=True)
    for normalized in (False, True):
        state = start(make_rebrac(ReBRACConfig(REPLAY, critic_layer_norm=normalized), SPEC, network))
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.extra.critic)]
        assert any("LayerNorm" in name for name in names) == normalized


def test_cql_critics_value_recorded_actions_above_others():
    config = CQLConfig(REPLAY, discount=0.9, critic_learning_rate=RATE, conservative_weight=2.0, num_sampled_actions=3)
    agent = make_cql(config, SPEC, NETWORK)
    cql = CQL(config, build_sac(config, SPEC, NETWORK))
    sac = cql.sac
    state, sample = start(agent), sample_of()
    observation, action, reward, going, following, weight = parts(sample)
    actor = state.params["actor"]
    target_key, conservative_key, _ = jax.random.split(KEY, 3)
    uniform_key, policy_key, next_key = jax.random.split(conservative_key, 3)

    def drawn(at, key, count):
        gaussian = sac.actor.parameters(actor, at)
        raw = gaussian.mean + jnp.exp(gaussian.log_std) * jax.random.normal(key, (*count, N, D))
        normal = (
            -0.5 * ((raw - gaussian.mean) / jnp.exp(gaussian.log_std)) ** 2 - gaussian.log_std - 0.5 * np.log(2 * np.pi)
        )
        return jnp.tanh(raw), (normal - jnp.log1p(-(jnp.tanh(raw) ** 2))).sum(-1)

    def critic_loss(params, goal, candidates):
        values = sac.critics.values(params, observation, action)
        total = 0.0
        for number in range(2):
            rows = [
                sac.critics.values(params, observation, actions[place])[number] - log_prob[place]
                for actions, log_prob in candidates
                for place in range(3)
            ]
            soft = jax.nn.logsumexp(jnp.stack(rows), axis=0)
            total += 0.5 * mean((values[number] - goal) ** 2, weight) + 2.0 * mean(soft - values[number], weight)
        return total

    @jax.jit
    def reference(critic, target):
        following_action, _ = drawn(following, target_key, ())
        goal = reward + 0.9 * going * jnp.min(sac.critics.values(target, following, following_action), axis=0)
        uniform = jax.random.uniform(uniform_key, (3, N, D), minval=-1.0)
        candidates = [(uniform, jnp.full((3, N), -D * np.log(2.0)))]
        candidates += [drawn(observation, policy_key, (3,)), drawn(following, next_key, (3,))]
        value, gradient = jax.value_and_grad(critic_loss)(critic, goal, candidates)
        return value, adam(critic, gradient)

    after, metrics, _ = jax.jit(agent.update)(state, sample, KEY)
    value, critic = reference(state.extra.critic, state.extra.target_critic)
    np.testing.assert_allclose(metrics["loss/critic"], value, rtol=1e-4)
    assert_close(after.extra.critic, critic)


def test_discrete_cql_adds_the_gap_of_its_equation():
    config = DiscreteCQLConfig(
        REPLAY, learning_rate=RATE, conservative_weight=0.5, discount=0.9, optimizer=OptimizerConfig(epsilon=1e-8)
    )
    agent, dqn = make_discrete_cql(config, DISCRETE, NETWORK), build_dqn(config, DISCRETE, NETWORK)
    state, sample = start(agent), sample_of(DISCRETE)
    observation, _, reward, going, following, weight = parts(sample)
    action = sample.trajectory.action[0]

    def q(params, at):
        return dqn.values.mean(dqn.net.outputs(params, at, None))

    def loss(params):
        best = jnp.argmax(q(params, following), axis=1)
        goal = reward + 0.9 * going * jax.lax.stop_gradient(q(state.extra.target, following)[jnp.arange(N), best])
        chosen = q(params, observation)[jnp.arange(N), action]
        huber = optax.losses.huber_loss(chosen, goal, delta=config.huber_delta or 0.0)
        gap = jax.nn.logsumexp(q(params, observation), axis=1) - chosen
        return mean(huber, weight) + 0.5 * mean(gap, weight)

    after, metrics, _ = jax.jit(agent.update)(state, sample, KEY)
    value, gradient = jax.jit(jax.value_and_grad(loss))(state.params["network"])
    assert_close(metrics["loss/total"], value)
    assert_close(after.params["network"], adam(state.params["network"], gradient))


@pytest.mark.parametrize("name", ["awac", "cql", "iql", "rebrac", "td3_bc"])
def test_continuous_algorithms_reject_discrete_actions(name):
    with pytest.raises(UserError, match="expected continuous actions"):
        AGENTS[name].make(AGENTS[name].config(), DISCRETE, NETWORK)


@pytest.mark.parametrize("name", ["awac", "bc", "cql", "discrete_cql", "iql", "rebrac", "td3_bc"])
def test_settings_out_of_range_are_rejected(name):
    wrong = {"bc": "learning_rate", "discrete_cql": "learning_rate"}.get(name, "actor_learning_rate")
    with pytest.raises(UserError, match=f"{wrong} must be positive"):
        AGENTS[name].config(**{wrong: 0.0})


def test_greedy_actions_are_the_mean_and_samples_are_legal():
    agent = make_iql(IQLConfig(REPLAY), SPEC, NETWORK)
    state, observation = start(agent), sample_of().trajectory.observation[0]
    act = partial(agent.act, state.params, observation, (), jnp.zeros(N, bool))
    greedy = [act(jax.random.split(jax.random.key(seed), N), Mode.GREEDY)[0] for seed in (0, 1)]
    np.testing.assert_array_equal(*greedy)
    sampled = act(jax.random.split(KEY, N), Mode.SAMPLE)[0]
    assert (np.abs(sampled) <= 2.0).all()
    assert not np.array_equal(sampled, greedy[0])
