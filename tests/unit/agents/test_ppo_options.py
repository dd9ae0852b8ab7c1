"""Options of PPO beyond the paper: targets, clips, normalized values, staleness."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import ppo
from agents.networks.actor_critic import make_actor_critic
from agents.ops import popart, returns
from agents.ops.optimizers import OptimizerConfig
from agents.ops.policy_gradient import SurrogateCoefficients
from agents.ops.schedules import ScheduleConfig, init_factors
from agents.ops.vtrace import VTraceConfig, unweighted_vtrace
from agents.ppo import PPOConfig
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.errors import UserError
from tests.unit.agents.test_ppo import NETWORK, SPEC, one_step_loss, trajectory, updated


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    # At ratio 10 and advantage -2 the surrogate would be -20: dual clipping stops it at 3 * -2.
    [(10.0, -2.0, 6.0), (2.0, -2.0, 4.0), (10.0, 2.0, -2.4), (0.5, -2.0, 1.6)],
)
def test_dual_clipping_bounds_the_loss_of_bad_actions_alone(ratio, advantage, expected):
    config = PPOConfig(clip_epsilon=0.2, dual_clip=3.0)
    _, metrics = one_step_loss(config, np.log(ratio), advantage)
    assert float(metrics["loss/policy"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    # 1.5 times min(r A, clip(r) A) with r the ratio to the policy before the update.
    [(1.1, 2.0, -3.3), (1.5, 2.0, -3.6), (0.5, -2.0, 2.4)],
)
def test_decoupled_loss_is_clipped_surrogate_times_importance(ratio, advantage, expected):
    _, metrics = one_step_loss(PPOConfig(clip_epsilon=0.2), np.log(ratio), advantage, importance=1.5)
    assert float(metrics["loss/policy"]) == pytest.approx(expected, rel=1e-5)


def lagging_trajectory(net, params, lag):
    """Steps whose actions were chosen with log-probabilities that differ from the newest ones by N(0, lag)."""
    data = trajectory(p_end=0.3)
    parameters, _, _ = net.unroll(params, data.observation, (), data.is_first)
    log_prob = np.asarray(net.distribution.log_prob(parameters[:-1], data.action))
    noise = np.random.default_rng(0).normal(scale=lag, size=log_prob.shape).astype(np.float32)
    return dataclasses.replace(data, extras={"behavior_log_prob": log_prob - noise}), log_prob, noise


def test_decoupled_batches_hold_the_newest_policy_and_its_ratio():
    net = make_actor_critic(NETWORK, SPEC)
    params = net.init(jax.random.key(0))
    data, log_prob, noise = lagging_trajectory(net, params, 0.3)
    batch, _ = ppo.make_batch(PPOConfig(decoupled=True), net, params, data)
    np.testing.assert_allclose(batch.proximal_log_prob, log_prob, rtol=1e-6)
    np.testing.assert_allclose(batch.importance, np.where(data.valid, np.exp(noise), 1.0), rtol=1e-5)
    plain, _ = ppo.make_batch(PPOConfig(), net, params, data)
    np.testing.assert_array_equal(plain.proximal_log_prob, data.extras["behavior_log_prob"])
    np.testing.assert_array_equal(plain.importance, np.ones_like(noise))


def test_first_decoupled_gradient_is_the_importance_weighted_one():
    """Before any step r = 1: nothing is clipped, and the gradient is that of -E[w A log pi]."""
    net = make_actor_critic(NETWORK, SPEC)
    params = net.init(jax.random.key(0))
    data, _, _ = lagging_trajectory(net, params, 1.0)
    config = PPOConfig(decoupled=True, entropy_coef=0.0, value_coef=0.0, normalize_advantage=False)
    batch, _ = ppo.make_batch(config, net, params, data)
    found = jax.grad(
        lambda p: ppo.loss(config, net, p, batch, SurrogateCoefficients(config.clip_epsilon, config.entropy_coef))[0]
    )(params)

    def by_hand(p):
        parameters, _, _ = net.unroll(p, batch.observation, (), batch.is_first)
        log_prob = net.distribution.log_prob(parameters, batch.action)
        steps = batch.weight * batch.importance * batch.advantage * log_prob
        return -jnp.sum(steps) / jnp.sum(batch.weight)

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), found, jax.grad(by_hand)(params))


def random_value(data, seed=0):
    return np.random.default_rng(seed).normal(size=data.is_first.shape).astype(np.float32)


def vtrace_of(data, value, log_ratio, discount, lambda_=1.0):
    """Targets and advantages of PPO with V-trace."""
    ends = (data.terminated, data.truncated, data.valid)
    config = VTraceConfig(lambda_=lambda_)
    return unweighted_vtrace(
        jnp.asarray(log_ratio), data.reward, jnp.asarray(value), *ends, discount=discount, config=config
    )


def test_on_policy_vtrace_targets_equal_gae():
    """Through `make_batch`, which chooses the estimator: the network that acts is the one that learns."""
    data, net = trajectory(p_end=0.3), make_actor_critic(NETWORK, SPEC)
    params = net.init(jax.random.key(0))
    parameters, value, _ = net.unroll(params, data.observation, (), data.is_first)
    log_prob = net.distribution.log_prob(parameters[:-1], data.action)
    data = dataclasses.replace(data, extras={"behavior_log_prob": np.asarray(log_prob)})
    gae, corrected = (
        ppo.make_batch(PPOConfig(gae_lambda=1.0, targets=targets), net, params, data) for targets in ("gae", "vtrace")
    )
    ends = (data.terminated, data.truncated, data.valid)
    by_hand = returns.gae(data.reward, value, *ends, discount=0.99, lambda_=1.0)
    np.testing.assert_allclose(gae[0].advantage, by_hand, rtol=1e-5, atol=1e-5)
    pairs = ((gae[0].advantage, corrected[0].advantage), (gae[1], corrected[1]))
    for one, other in pairs:
        np.testing.assert_allclose(np.where(data.valid, one, 0), np.where(data.valid, other, 0), rtol=1e-5, atol=1e-5)


def test_vtrace_at_a_ratio_of_zero_moves_no_earlier_value():
    """At a ratio of 0, v_t = V(x_t) everywhere, and the advantage is the one-step one (eq. 1 with rho = c = 0)."""
    data = trajectory(p_end=0.0)
    value = random_value(data)
    found = vtrace_of(data, value, np.full(data.reward.shape, -200.0, np.float32), discount=0.9, lambda_=0.95)
    np.testing.assert_allclose(found.target, value[:-1], atol=1e-6)
    np.testing.assert_allclose(found.advantage, data.reward + 0.9 * value[1:] - value[:-1], rtol=1e-5, atol=1e-5)


def prepared_target(data, **options):
    """Value targets of the first update at discount 0: the rewards as the loss sees them."""
    agent = ppo.make_ppo(PPOConfig(discount=0.0, gae_lambda=0.0, **options), SPEC, NETWORK)
    state = agent.init(jax.random.key(1))
    prepared, _ = agent.gradient_steps.prepare(state.params, state.extra, data, jax.random.key(0), 0)
    return jax.tree.leaves(prepared, is_leaf=lambda node: isinstance(node, ppo.Minibatches))[0].batch.target_value


def test_ppo_trains_on_clipped_rewards():
    data = trajectory()
    assert (np.abs(data.reward) > 0.1).any()
    expected = np.where(data.valid, np.clip(data.reward, -0.1, 0.1), 0.0)
    found = np.where(data.valid, prepared_target(data, reward_clip=0.1), 0.0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_rewards_are_clipped_before_they_are_scaled():
    data = trajectory(p_end=0.0)
    reward = np.tile(np.float32([50.0, -50.0, 0.5, 0.0]), (data.reward.shape[0], 2))
    data = dataclasses.replace(data, reward=reward)
    # Clipped to 1, -1, 0.5, 0 with mean 1 / 8: the variance is (1 + 1 + 1/4) / 4 - 1 / 64 = 35 / 64.
    expected = np.tile([1.0, -1.0, 0.5, 0.0], (reward.shape[0], 2)) / np.sqrt(35 / 64)
    found = prepared_target(data, reward_clip=1.0, normalization=NormalizationConfig(rewards=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lambda_", [1.0, 0.8, 0.0])
def test_unweighted_vtrace_is_that_of_rlax_without_its_ratio(lambda_):
    rlax = pytest.importorskip("rlax")
    rng, data = np.random.default_rng(3), trajectory(p_end=0.2)
    data = dataclasses.replace(data, valid=np.ones_like(data.valid))
    value = rng.normal(size=data.is_first.shape).astype(np.float32)
    log_ratio = rng.normal(scale=0.7, size=data.reward.shape).astype(np.float32)
    found = vtrace_of(data, value, log_ratio, discount=0.97, lambda_=lambda_)
    for row in range(data.reward.shape[1]):
        discount = 0.97 * (1.0 - data.terminated[:, row].astype(np.float32))
        rho = np.exp(log_ratio[:, row])
        expected = rlax.vtrace_td_error_and_advantage(
            value[:-1, row], value[1:, row], data.reward[:, row], discount, rho, lambda_
        )
        np.testing.assert_allclose(found.target[:, row] - value[:-1, row], expected.errors, rtol=1e-4, atol=1e-5)
        unweighted = expected.pg_advantage / np.minimum(1.0, rho)
        np.testing.assert_allclose(found.advantage[:, row], unweighted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # to compile
def test_ppo_ignores_stale_steps():
    data = trajectory()
    stale = np.zeros(data.valid.shape, bool)
    stale[:, 0] = True
    data = dataclasses.replace(data, policy_version=np.where(stale, 3, 5).astype(np.int32))
    spoiled = dataclasses.replace(data, action=np.where(stale, 1 - data.action, data.action).astype(np.int32))

    def learnt(max_staleness, batch):
        config = PPOConfig(max_staleness=max_staleness, num_epochs=1)
        agent = ppo.make_ppo(config, SPEC, NETWORK)
        state = agent.init(jax.random.key(1))
        state = dataclasses.replace(state, num_updates=jnp.int32(5))
        return jax.jit(agent.update)(state, batch, jax.random.key(0))

    (one, metrics), (other, _) = learnt(1, data), learnt(1, spoiled)
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    assert float(metrics["batch/stale_fraction"]) == pytest.approx(data.valid[:, 0].sum() / data.valid.sum())
    (kept, _), (changed, _) = learnt(2, data), learnt(2, spoiled)
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (kept.params, changed.params)), strict=True))


@pytest.mark.slow  # to compile
@pytest.mark.parametrize("how", ["popart", "moments"])
def test_normalized_values_predict_rewards_in_their_own_units(how):
    data = trajectory()
    data = dataclasses.replace(data, reward=1000.0 + 100.0 * data.reward)
    config = PPOConfig(value_normalization=how, value_normalization_step=1.0, discount=0.0, gae_lambda=0.0)
    agent = ppo.make_ppo(config, SPEC, NETWORK)
    state = agent.init(jax.random.key(1))
    net, update = make_actor_critic(NETWORK, SPEC), jax.jit(agent.update)
    after, metrics = update(state, data, jax.random.key(0))
    rewards = data.reward[data.valid]
    assert float(metrics["value/mean"]) == pytest.approx(rewards.mean(), rel=1e-4)
    assert float(metrics["value/deviation"]) == pytest.approx(rewards.std(), rel=1e-3)
    # What the layer predicts, in reward units, is what it predicted before it was rescaled; without, it is not.
    plain = dataclasses.replace(config, value_normalization="moments")
    unscaled, _ = jax.jit(ppo.make_ppo(plain, SPEC, NETWORK).update)(state, data, jax.random.key(0))
    before = popart.denormalize(state.extra["popart"], net.value(unscaled.params, data.observation))
    now = popart.denormalize(after.extra["popart"], net.value(after.params, data.observation))
    if how == "popart":
        np.testing.assert_allclose(now, before, rtol=1e-3, atol=1e-2)
    else:
        assert np.abs(now - before).max() > 100.0


@pytest.mark.parametrize(
    "change",
    [
        {"dual_clip": 1.0},
        {"reward_clip": 0.0},
        {"value_normalization_step": 0.0},
        {"max_staleness": -1},
        {"chunk_length": 0},
        {"chunk_length": 2, "burn_in": 3},
        {"burn_in": 1},
        {"vtrace_clip": 0.0},
        {"target_kl": 0.0},
        {"value_clip_epsilon": -0.2},
        {"targets": "v-trace"},
        {"minibatch_axis": "row"},
        {"value_normalization": "PopArt"},
    ],
)
def test_options_out_of_range_are_rejected_by_name(change):
    with pytest.raises(UserError, match=next(iter(set(change) - {"chunk_length"}), "chunk_length")):
        PPOConfig(**change)


def test_ppo_options_are_off_by_default():
    assert updated(PPOConfig(num_epochs=1), trajectory())[0].extra == init_factors("entropy_coef")


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 1 / 1.5), (1e3, 1.5)])
def test_adaptive_kl_changes_the_rate_of_the_next_update(target, factor):
    config = PPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2, adaptive_kl=target)
    agent = ppo.make_ppo(config, SPEC, NETWORK)
    update, key = jax.jit(agent.update), jax.random.key(0)
    first, metrics = update(agent.init(jax.random.key(1)), trajectory(0), key)
    assert float(metrics["learning_rate"]) == pytest.approx(1e-3)
    assert float(first.extra["rate_scale"]) == pytest.approx(factor)
    second, metrics = update(first, trajectory(1), key)
    assert float(metrics["learning_rate"]) == pytest.approx(1e-3 * factor)
    plain = ppo.make_ppo(dataclasses.replace(config, adaptive_kl=None, learning_rate=1e-3 * factor), SPEC, NETWORK)
    expected, _ = jax.jit(plain.update)(
        dataclasses.replace(first, extra=init_factors("entropy_coef")), trajectory(1), key
    )
    for one, other in zip(*map(jax.tree.leaves, (second.params, expected.params)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 4])
def test_adaptive_kl_needs_two_steps_of_the_optimizer(steps):
    optimizer = OptimizerConfig(accumulate=steps)
    with pytest.raises(UserError, match=f"than optimizer.accumulate: .* got {steps} and {steps}"):
        PPOConfig(num_epochs=1, num_minibatches=steps, adaptive_kl=0.01, optimizer=optimizer)


@pytest.mark.parametrize("schedule", [ScheduleConfig("linear"), ScheduleConfig(warmup=0.1)], ids=["linear", "warmup"])
def test_adaptive_kl_needs_a_constant_schedule(schedule):
    with pytest.raises(UserError, match=r"set agent\.learning_rate_schedule\.kind=constant"):
        PPOConfig(adaptive_kl=0.01, learning_rate_schedule=schedule, total_updates=10)


def test_ppo_minibatches_of_one_step_are_rejected():
    data = jax.tree.map(lambda leaf: leaf[:, :1], trajectory(0))
    steps = data.reward.shape[0]

    def shapes(**changes):
        agent = ppo.make_ppo(PPOConfig(num_minibatches=steps, **changes), SPEC, NETWORK)
        jax.eval_shape(agent.update, jax.eval_shape(agent.init, jax.random.key(0)), data, jax.random.key(0))

    shapes(normalize_advantage=False)
    with pytest.raises(UserError, match="at least 2 steps"):
        shapes()


def test_ppo_schedules_equal_constants_of_their_values():
    halves = PPOConfig(clip_epsilon=0.05, entropy_coef=0.2, num_epochs=2, num_minibatches=2)
    linear = ScheduleConfig("linear")
    config = dataclasses.replace(
        halves,
        clip_epsilon=0.1,
        clip_epsilon_schedule=linear,
        entropy_coef=0.4,
        entropy_coef_schedule=linear,
        total_updates=2,
    )
    states = []
    for one in (halves, config):
        agent = ppo.make_ppo(one, SPEC, NETWORK)
        state = dataclasses.replace(agent.init(jax.random.key(1)), num_updates=jnp.int32(1))
        state, metrics = jax.jit(agent.update)(state, trajectory(0), jax.random.key(0))
        assert float(metrics["clip_epsilon"]) == pytest.approx(0.05)
        assert float(metrics["entropy_coef"]) == pytest.approx(0.2)
        states.append(state)
    for one, other in zip(*(jax.tree.leaves(state.params) for state in states), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
