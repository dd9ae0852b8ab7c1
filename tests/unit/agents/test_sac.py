"""SAC against numpy loops, hand values and another library's densities."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState, Mode, ReplayAgent, ReplayConfig, Sample, Trajectory
from agents.networks.config import NetworkConfig
from agents.networks.continuous_actors import Squashed, squash
from agents.networks.critics import critic_loss
from agents.ops.importance_weights import importance_weights
from agents.ops.n_step import first_n_step_transitions
from agents.ops.optimizers import OptimizerConfig
from agents.sac import (
    SAC,
    SACConfig,
    actor_loss,
    build_sac,
    make_sac,
    sample_actions,
    soft_targets,
    temperature_gradient,
)
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from jaxsrl.config.serialization import from_json

SPEC = EnvSpec("test", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", (-1.0, 0.0), (3.0, 0.5)))
NETWORK = NetworkConfig(hidden_sizes=(4,), activation="relu")
CONFIG = SACConfig(
    ReplayConfig(batch_size=6, priority_exponent=0.6),
    total_updates=10,
    n_step=3,
    discount=0.9,
    tau=0.25,
    init_temperature=0.5,
    importance_sampling_exponent=0.4,
)
N, L = 6, 3
KEY = 7


class Learnt(NamedTuple):
    """The bound algorithm, the agent, its first and second state, and compiled functions."""

    bound: SAC
    agent: ReplayAgent
    first: LearnerState
    sample: Sample
    state: LearnerState
    metrics: dict
    priorities: np.ndarray
    update: Callable
    values: Callable
    sample_actions: Callable


def sac_sample() -> Sample:
    """Windows that go on, end at once, end in their middle (by task and by clock), begin with a reset, and hold one."""
    rng = np.random.default_rng(0)
    terminated, truncated, valid = np.zeros((L, N), bool), np.zeros((L, N), bool), np.ones((L, N), bool)
    terminated[0, 1] = truncated[1, 2] = terminated[1, 3] = True
    valid[1, 1] = valid[2, 2] = valid[2, 3] = valid[0, 4] = False
    trajectory = Trajectory(
        observation=rng.normal(size=(L + 1, N, 3)).astype(np.float32),
        is_first=np.zeros((L + 1, N), bool),
        action=rng.uniform((-1.0, 0.0), (3.0, 0.5), (L, N, 2)).astype(np.float32),
        reward=rng.normal(size=(L, N)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((L, N), np.int32),
        extras={},
    )
    probability = np.array([0.1, 0.02, 0.05, 0.1, 0.1, 0.04], np.float32)
    return Sample(jax.tree.map(jnp.asarray, trajectory), jnp.asarray(probability), jnp.int32(20))


@pytest.fixture(scope="module")
def learnt() -> Learnt:
    bound = build_sac(CONFIG, SPEC, NETWORK)
    agent = make_sac(CONFIG, SPEC, NETWORK)
    first = dataclasses.replace(jax.device_get(jax.jit(agent.init)(jax.random.key(0))), num_updates=np.int32(5))
    # A target that differs from the newest critics, or no test could tell them apart.
    moved = jax.tree.map(lambda leaf: leaf + 0.1, first.extra.target_critic)
    first = dataclasses.replace(first, extra=dataclasses.replace(first.extra, target_critic=moved))
    update = jax.jit(agent.update)
    state, metrics, priorities = jax.device_get(update(first, sac_sample(), jax.random.key(KEY)))
    values, sampling = jax.jit(bound.critics.values), jax.jit(partial(sample_actions, bound))
    return Learnt(bound, agent, first, sac_sample(), state, metrics, np.asarray(priorities), update, values, sampling)


def _batch(learnt: Learnt):
    batch = first_n_step_transitions(learnt.sample.trajectory, CONFIG.discount, CONFIG.n_step)
    return batch._replace(action=learnt.bound.actions.to_unit(batch.action))


def _importance(learnt: Learnt) -> np.ndarray:
    beta = learnt.bound.beta(learnt.first.num_updates)
    return np.asarray(importance_weights(learnt.sample.probability, learnt.sample.trajectory.valid[0], beta))


def _added(learnt: Learnt, observation, key) -> tuple[np.ndarray, np.ndarray]:
    """Returns actions, and the entropy term of soft values, -alpha log pi."""
    action, log_prob = learnt.sample_actions(learnt.first.params["actor"], observation, key)
    return np.asarray(action), -0.5 * np.asarray(log_prob)


def _expected_transitions(learnt: Learnt):
    """(reward, discount, next observation) of each window by a loop over its steps."""
    steps, found = jax.tree.map(np.asarray, learnt.sample.trajectory), []
    for row in range(N):
        reward, discount = 0.0, 1.0
        for t in range(L):
            reward += discount * steps.reward[t, row]
            discount *= CONFIG.discount
            after = steps.observation[t + 1, row]
            if steps.terminated[t, row]:
                discount = 0.0
            if steps.terminated[t, row] or steps.truncated[t, row]:
                break
        found.append((reward, discount, after))
    return [np.array(part) for part in zip(*found, strict=True)]


@pytest.mark.slow  # the library takes seconds to import; the integral below says the same
def test_the_density_is_that_of_another_library():
    distrax = pytest.importorskip("distrax")
    rng = np.random.default_rng(0)
    mean, log_std, noise = (jnp.asarray(rng.normal(size=(50, 2)), jnp.float32) for _ in range(3))
    action, log_prob = jax.jit(squash)(Squashed(mean, log_std), noise)
    theirs = distrax.Transformed(
        distrax.MultivariateNormalDiag(mean, jnp.exp(log_std)), distrax.Block(distrax.Tanh(), 1)
    )
    np.testing.assert_allclose(action, jnp.tanh(mean + jnp.exp(log_std) * noise), rtol=1e-5)
    inside = (
        np.abs(np.asarray(action)).max(-1) < 0.99
    )  # theirs goes back from the action, which loses digits at the bounds
    assert inside.sum() > 20
    np.testing.assert_allclose(log_prob[inside], theirs.log_prob(action)[inside], rtol=1e-3, atol=1e-3)


def test_the_density_integrates_to_one_over_the_actions():
    mean, log_std = 0.3, np.log(0.8)
    raw = np.linspace(-8.0, 8.0, 20001)
    noise = ((raw - mean) / 0.8)[:, None].astype(np.float32)
    gaussian = Squashed(jnp.full(noise.shape, mean), jnp.full(noise.shape, log_std))
    action, log_prob = jax.jit(squash)(gaussian, noise)
    total = np.trapezoid(np.exp(np.asarray(log_prob, np.float64)), np.tanh(raw))
    assert total == pytest.approx(1.0, abs=1e-4)
    assert np.abs(np.asarray(action)[:, 0] - np.tanh(raw)).max() < 1e-5


def test_squash_density_is_exact_at_the_bounds():
    raw = np.array([[-30.0], [-9.0], [9.0], [30.0]], np.float32)
    zeros = jnp.zeros_like(raw)
    expected = -0.5 * np.log(2 * np.pi) + 2.0 * np.log(np.cosh(raw.astype(np.float64)))[:, 0]  # 1 - tanh^2 = 1 / cosh^2
    log_prob = jax.jit(lambda mean: squash(Squashed(mean, zeros), zeros)[1])
    np.testing.assert_allclose(log_prob(raw), expected, rtol=1e-5)
    slope = jax.jit(jax.grad(lambda mean: jnp.sum(log_prob(mean))))(raw)
    np.testing.assert_allclose(slope, 2.0 * np.tanh(raw), rtol=1e-5)  # d/du 2 log cosh u


def test_transitions_match_loop_over_windows(learnt):
    batch = _batch(learnt)
    reward, discount, after = _expected_transitions(learnt)
    counts = np.asarray(learnt.sample.trajectory.valid[0])
    assert batch.weight.tolist() == [1, 1, 1, 1, 0, 1]
    np.testing.assert_allclose(batch.reward[counts], reward[counts], rtol=1e-5)
    np.testing.assert_allclose(batch.discount[counts], discount[counts], rtol=1e-6)
    np.testing.assert_array_equal(batch.next_observation[counts], after[counts])
    unit = (np.asarray(learnt.sample.trajectory.action[0]) - [1.0, 0.25]) / [2.0, 0.25]
    np.testing.assert_allclose(batch.action, unit, atol=1e-5)
    probability = np.asarray(learnt.sample.probability)
    weights = np.where(counts, probability**-0.7, 0.0)  # beta is half way from 0.4 to 1 after 5 of 10 updates
    np.testing.assert_allclose(_importance(learnt), weights / weights.max(), rtol=1e-4)


def test_targets_are_soft_values_of_the_least_target_critic(learnt):
    bound, state, batch = learnt.bound, learnt.first, _batch(learnt)
    target = jax.jit(partial(soft_targets, bound))(state.params["actor"], state.extra, batch, jax.random.key(3))
    action, added = _added(learnt, batch.next_observation, jax.random.key(3))
    values = np.asarray(learnt.values(state.extra.target_critic, batch.next_observation, action))
    reward, discount, _ = _expected_transitions(learnt)
    for row in np.flatnonzero(learnt.sample.trajectory.valid[0]):
        soft = min(values[0, row], values[1, row]) + float(added[row])
        assert target[row] == pytest.approx(reward[row] + discount[row] * soft, rel=1e-4), row


def test_entropy_term_is_minus_alpha_log_density(learnt):
    action, added = _added(learnt, learnt.sample.trajectory.observation[0], jax.random.key(3))
    unsquashed = np.arctanh(np.asarray(action, np.float64))
    # Actors start with means near 0 and deviations near 1: the density of each action is known without the network.
    log_prob = (-0.5 * unsquashed**2 - 0.5 * np.log(2 * np.pi) - np.log(1 - np.asarray(action, np.float64) ** 2)).sum(
        -1
    )
    np.testing.assert_allclose(added, -0.5 * log_prob, atol=0.2)


def test_critic_loss_is_weighted_half_squared_error(learnt):
    bound, state, batch = learnt.bound, learnt.first, _batch(learnt)
    target = np.arange(N, dtype=np.float32)
    importance = _importance(learnt)
    loss, _ = jax.jit(partial(critic_loss, bound.critics))(state.extra.critic, batch, target, importance)
    values = np.asarray(learnt.values(state.extra.critic, batch.observation, batch.action))
    expected, counted = 0.0, [row for row in range(N) if row != 4]
    for member in range(2):
        squares = [float(importance[row]) * (values[member, row] - target[row]) ** 2 for row in counted]
        expected += 0.5 * sum(squares) / len(counted)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_sac_priorities_are_mean_absolute_errors(learnt):
    bound, state, batch = learnt.bound, learnt.first, _batch(learnt)
    target_key, _ = jax.random.split(jax.random.key(KEY))
    targets = jax.jit(partial(soft_targets, bound))
    target = np.asarray(targets(state.params["actor"], state.extra, batch, target_key))
    values = np.asarray(learnt.values(state.extra.critic, batch.observation, batch.action))
    expected = np.abs(values - target).mean(0)
    expected[4] = 0.0
    np.testing.assert_allclose(learnt.priorities, expected, rtol=1e-4)


def test_sac_update_moves_all_parts_and_counts(learnt):
    old, new = learnt.first, learnt.state
    assert int(new.extra.num_gradient_steps) == 1
    assert int(new.num_updates) == int(old.num_updates)
    chex.assert_trees_all_equal_shapes_and_dtypes(old, new)
    for before, after in (
        (old.params["actor"], new.params["actor"]),
        (old.extra.critic, new.extra.critic),
        (old.extra.log_temperature, new.extra.log_temperature),
    ):
        assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool(np.any(a != b)), before, after)))
    expected = jax.tree.map(
        lambda target, critic: 0.75 * np.asarray(target) + 0.25 * np.asarray(critic),
        old.extra.target_critic,
        new.extra.critic,
    )
    chex.assert_trees_all_close(new.extra.target_critic, expected, rtol=1e-5, atol=1e-6)
    for name, value in learnt.metrics.items():
        assert (value.shape, value.dtype) == ((), jnp.float32), name
        assert np.isfinite(value), name


def test_sac_ignores_reset_steps_bit_for_bit(learnt):
    steps = learnt.sample.trajectory
    junk = ~np.asarray(steps.valid)
    assert junk[0].any()
    spoiled = dataclasses.replace(
        steps,
        action=jnp.where(junk[..., None], 0.1, steps.action),
        reward=jnp.where(junk, 1e6, steps.reward),
    )
    other = learnt.update(learnt.first, dataclasses.replace(learnt.sample, trajectory=spoiled), jax.random.key(KEY))
    chex.assert_trees_all_equal(other[0], learnt.state)
    np.testing.assert_array_equal(other[2], learnt.priorities)


def test_the_actor_climbs_the_least_critic_and_entropy(learnt):
    bound, state, batch = learnt.bound, learnt.first, _batch(learnt)
    loss = jax.jit(partial(actor_loss, bound))
    arguments = (state.extra.critic, state.extra.log_temperature, batch, jax.random.key(1))
    value, metrics = loss(state.params["actor"], *arguments)
    action, added = _added(learnt, batch.observation, jax.random.key(1))
    q = np.asarray(learnt.values(state.extra.critic, batch.observation, action)).min(0)
    counted = np.asarray(batch.weight) > 0
    assert float(value) == pytest.approx(float((-np.asarray(added) - q)[counted].mean()), rel=1e-4)
    assert float(metrics["policy/entropy"]) == pytest.approx(float(np.asarray(added)[counted].mean() / 0.5), rel=1e-4)
    grads = jax.jit(jax.grad(partial(actor_loss, bound), has_aux=True))(state.params["actor"], *arguments)[0]
    lower = jax.tree.map(lambda leaf, slope: leaf - 1e-2 * slope, state.params["actor"], grads)
    assert float(loss(lower, *arguments)[0]) < float(value)


@pytest.mark.parametrize(("entropy", "sign"), [(-2.5, 1.0), (-1.5, -1.0)])
def test_too_little_entropy_raises_temperature(learnt, entropy, sign):
    # The target is -2, one nat for each of two elements; a step goes against the gradient.
    gradient = temperature_gradient(learnt.bound, learnt.first.extra.log_temperature, jnp.float32(entropy))
    assert float(gradient) == pytest.approx(-sign * 0.5 * 0.5, rel=1e-3)


def test_temperature_step_is_adams_first_step_against_gradient(learnt):
    step = float(learnt.state.extra.log_temperature - learnt.first.extra.log_temperature)
    assert step == pytest.approx(-np.sign(learnt.metrics["policy/entropy"] + 2.0) * 3e-4, rel=1e-3)


def test_a_clip_by_parameters_is_not_of_the_temperature(learnt):
    clipped = dataclasses.replace(CONFIG, optimizer=OptimizerConfig(adaptive_clip=1e-6))
    agents = [make_sac(config, SPEC, NETWORK) for config in (CONFIG, clipped)]
    first = agents[1].init(jax.random.key(0))
    plain, state = (
        jax.jit(agent.update)(agent.init(jax.random.key(0)), learnt.sample, jax.random.key(KEY))[0] for agent in agents
    )
    assert state.extra.log_temperature == plain.extra.log_temperature != first.extra.log_temperature


def test_a_temperature_that_is_not_learned_stays(learnt):
    fixed = dataclasses.replace(CONFIG, autotune_temperature=False)
    state, _, _ = jax.jit(make_sac(fixed, SPEC, NETWORK).update)(learnt.first, learnt.sample, jax.random.key(KEY))
    assert float(state.extra.log_temperature) == float(learnt.first.extra.log_temperature)
    chex.assert_trees_all_equal(state.opt_state["temperature"], learnt.first.opt_state["temperature"])


def _actions(learnt: Learnt, state: LearnerState, mode: Mode) -> np.ndarray:
    rows = 400
    observation = np.zeros((rows, 3), np.float32)
    keys = jax.random.split(jax.random.key(0), rows)
    acting = jax.jit(learnt.agent.act, static_argnums=5)
    action, extras, memory = acting(state.params, observation, (), np.zeros(rows, bool), keys, mode)
    assert (extras, memory) == ({}, ())
    return np.asarray(action)


def test_sac_acts_uniformly_until_first_gradient_step(learnt):
    refresh = learnt.agent.data.sync_acting_params
    assert refresh is not None
    # A policy that would go far to one side, were it asked.
    shifted = jax.tree.map(lambda leaf: leaf + 1.0, learnt.first.params["actor"])
    first = dataclasses.replace(learnt.first, params={**learnt.first.params, "actor": shifted})
    before = _actions(learnt, refresh(first), Mode.SAMPLE)
    assert (before >= [-1.0, 0.0]).all()
    assert (before <= [3.0, 0.5]).all()
    # A quarter of uniform actions lies in each quarter; four deviations of a count of 400 are 0.09.
    for element, (low, high) in enumerate(((-1.0, 3.0), (0.0, 0.5))):
        shares = np.histogram(before[:, element], bins=4, range=(low, high))[0] / len(before)
        np.testing.assert_allclose(shares, 0.25, atol=0.09)
    asked = dataclasses.replace(first, extra=learnt.state.extra)
    assert _actions(learnt, refresh(asked), Mode.SAMPLE).mean(0)[0] > 2.0
    greedy = _actions(learnt, refresh(learnt.first), Mode.GREEDY)
    assert np.ptp(greedy, axis=0).max() == 0.0
    np.testing.assert_allclose(greedy[0], [1.0, 0.25], atol=0.1)  # actors start near the middle


def test_random_actions_may_be_counted_in_trajectories_instead(learnt):
    config = dataclasses.replace(CONFIG, random_updates=6)
    refresh = make_sac(config, SPEC, NETWORK).data.sync_acting_params
    assert refresh is not None
    assert bool(refresh(learnt.state).params["acts_uniformly"])  # 5 of 6, though a gradient step was done
    later = dataclasses.replace(learnt.state, num_updates=jnp.int32(6))
    assert not bool(refresh(later).params["acts_uniformly"])


def test_sac_initial_critics_differ_and_targets_are_copies():
    state = jax.jit(make_sac(CONFIG, SPEC, NETWORK).init)(jax.random.key(0))
    kernels = [leaf for leaf in jax.tree.leaves(state.extra.critic) if np.any(leaf)]
    assert kernels
    assert all(np.any(leaf[0] != leaf[1]) for leaf in kernels)
    chex.assert_trees_all_equal(state.extra.critic, state.extra.target_critic)


def test_windows_are_as_long_as_a_return(learnt):
    assert (learnt.agent.data.sequence_length, learnt.agent.data.stride) == (3, 1)
    assert learnt.agent.data.config == CONFIG.replay


def test_a_configuration_comes_back_from_json():
    assert from_json(SACConfig, json.loads(json.dumps(dataclasses.asdict(CONFIG)))) == CONFIG


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"discount": 1.5}, r"discount must lie in \[0, 1\]: got 1.5"),
        ({"actor_learning_rate": 0.0}, "actor_learning_rate must be positive: got 0.0"),
        ({"n_step": 0}, "n_step must be at least 1: got 0"),
        ({"random_updates": -1}, "random_updates must not be negative"),
        ({"tau": 0.0}, "tau must lie in"),
        ({"init_temperature": 0.0}, "init_temperature must be positive: got 0.0"),
        ({"policy_delay": 0}, "policy_delay must be at least 1: got 0"),
        ({"num_target_critics": 3}, "num_target_critics must be from 1 to num_critics, 2: got 3"),
        ({"num_target_critics": 0}, "num_target_critics must be from 1 to num_critics, 2: got 0"),
    ],
)
def test_sac_rejects_invalid_configurations(change, message):
    with pytest.raises(UserError, match=message):
        SACConfig(**change)


def test_sac_rejects_unsupported_settings():
    with pytest.raises(UserError, match=r"expected network.core 'none', got 'lstm'"):
        make_sac(SACConfig(), SPEC, NetworkConfig(core="lstm"))
    with pytest.raises(UserError, match=r"network.shared_torso True has no effect"):
        make_sac(SACConfig(), SPEC, NetworkConfig(shared_torso=True))
    with pytest.raises(UserError, match=r"must be finite and below 1.386.*got 2.0; None stands for -2"):
        make_sac(SACConfig(target_entropy=2.0), SPEC, NETWORK)
    for entropy in (float("nan"), float("-inf")):
        with pytest.raises(UserError, match=rf"target_entropy must be .*: got {entropy}"):
            SACConfig(target_entropy=entropy)
    with pytest.raises(UserError, match=r"number of updates: got total_updates=0"):
        make_sac(dataclasses.replace(CONFIG, total_updates=0), SPEC, NETWORK)
