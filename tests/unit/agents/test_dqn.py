"""DQN on a table of values against a loop over windows, hand values and rlax."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig, Sample, Trajectory
from agents.dqn import DQNConfig, build_dqn, initial_priority, loss, make_dqn, n_step_returns
from agents.networks.config import NetworkConfig
from agents.networks.q_network import QNetwork
from agents.ops.importance_weights import importance_weights
from agents.ops.n_step import first_transitions
from agents.ops.optimizers import OptimizerConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec

STATES, ACTIONS, DISCOUNT = 9, 4, 0.9
STILL = {"epsilon_start": 0.1, "epsilon_end": 0.1}
NETWORK = NetworkConfig(hidden_sizes=(8,))
SPEC = EnvSpec("test", ArraySpec((2,), "float32"), DiscreteSpec(ACTIONS))
MASKED = EnvSpec(
    "masked",
    {"state": ArraySpec((1,), "float32"), "legal": ArraySpec((ACTIONS,), "int8")},
    DiscreteSpec(ACTIONS),
    action_mask=("legal",),
)


def tabular(config):
    """Returns DQN over a table of values, [STATES, A, K], of observations {"state", "legal"}."""
    dqn = build_dqn(config, MASKED, NETWORK)

    def look_up(params, observation, noise):
        return jnp.asarray(params)[jnp.asarray(observation["state"][..., 0], jnp.int32)]

    net = QNetwork(dqn.net.init, look_up, None, lambda n: (), lambda p, o: o["legal"], ACTIONS, False)
    return dqn._replace(net=net)


def windows(num_steps, num_windows=64, seed=0):
    """Windows that begin anywhere: some end early, one way or the other, some begin with a step that only resets."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, num_steps, num_windows)) < 0.15
    valid = np.ones((num_steps, num_windows), bool)
    before = rng.random(num_windows) < 0.2
    for t in range(num_steps):
        valid[t] = ~before
        terminated[t] &= valid[t]
        truncated[t] &= valid[t] & ~terminated[t]
        before = terminated[t] | truncated[t]
    legal = rng.random((num_steps + 1, num_windows, ACTIONS)) < 0.6
    legal[..., 1] = True
    return Trajectory(
        observation={
            "state": rng.integers(0, STATES, (num_steps + 1, num_windows, 1)).astype(np.float32),
            "legal": legal.astype(np.int8),
        },
        is_first=np.concatenate([~valid, np.zeros((1, num_windows), bool)]),
        action=rng.integers(0, ACTIONS, (num_steps, num_windows)).astype(np.int32),
        reward=rng.normal(size=(num_steps, num_windows), scale=2.0).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((num_steps, num_windows), np.int32),
        extras={},
    )


def transitions(config, steps):
    return first_transitions(steps, n_step_returns(config, steps))


def errors_by_loop(steps, online, target, *, double, clip):
    """[N] temporal differences, walking each window from its first step; NaN where that only resets."""
    num_steps, num_windows = steps.reward.shape
    state = steps.observation["state"][..., 0].astype(int)
    result = np.full(num_windows, np.nan)
    for n in range(num_windows):
        if not steps.valid[0, n]:
            continue
        total, weight, end = 0.0, 1.0, 0
        for t in range(num_steps):
            total += weight * np.clip(steps.reward[t, n], -clip, clip)
            weight, end = weight * DISCOUNT, t + 1
            if steps.terminated[t, n] or steps.truncated[t, n]:
                break
        if not steps.terminated[end - 1, n]:
            legal = np.flatnonzero(steps.observation["legal"][end, n])
            judge = online if double else target
            best = legal[np.argmax(judge[state[end, n]][legal])]
            total += weight * target[state[end, n], best]
        result[n] = total - online[state[0, n], steps.action[0, n]]
    return result


@pytest.mark.parametrize(("double", "num_steps"), [(False, 1), (True, 3)])
def test_dqn_errors_equal_a_loop_over_windows(double, num_steps):
    config = DQNConfig(**STILL, discount=DISCOUNT, n_step=num_steps, double=double, huber_delta=None, reward_clip=1.5)
    dqn, steps = tabular(config), windows(num_steps)
    online, target = np.random.default_rng(1).normal(size=(2, STATES, ACTIONS, 1)).astype(np.float32)
    weight = np.random.default_rng(2).random(64).astype(np.float32)

    @partial(jax.value_and_grad, has_aux=True)
    def of_table(table):
        return loss(dqn, table, target, transitions(config, steps), weight, jax.random.key(0))

    (total, (_, priority)), gradient = jax.jit(of_table)(online)
    expected = errors_by_loop(steps, online[..., 0], target[..., 0], double=double, clip=1.5)
    counted = ~np.isnan(expected)
    assert 10 < counted.sum() < 64
    assert steps.truncated[0][counted].any()
    assert steps.terminated[0][counted].any()
    np.testing.assert_allclose(priority, np.nan_to_num(np.abs(expected)), rtol=1e-4, atol=1e-5)
    squares = 0.5 * np.square(np.nan_to_num(expected)) * weight
    np.testing.assert_allclose(total, squares.sum() / counted.sum(), rtol=1e-4)
    by_hand = np.zeros((STATES, ACTIONS))
    for n in np.flatnonzero(counted):
        state = int(steps.observation["state"][0, n, 0])
        by_hand[state, steps.action[0, n]] -= weight[n] * expected[n] / counted.sum()
    np.testing.assert_allclose(gradient[..., 0], by_hand, rtol=1e-3, atol=1e-5)


def test_double_q_learning_is_rlaxs():
    rlax = pytest.importorskip("rlax")
    config = DQNConfig(**STILL, discount=DISCOUNT, double=True, huber_delta=None)
    dqn, steps = tabular(config), windows(1, seed=3)
    steps.observation["legal"][:] = 1
    online, target = np.random.default_rng(4).normal(size=(2, STATES, ACTIONS, 1)).astype(np.float32)
    batch = transitions(config, steps)
    _, (_, priority) = jax.jit(partial(loss, dqn))(online, target, batch, np.ones(64, np.float32), jax.random.key(0))
    before, after = steps.observation["state"][..., 0].astype(int)
    theirs = jax.jit(jax.vmap(rlax.double_q_learning))(
        online[before, :, 0],
        steps.action[0],
        steps.reward[0],
        np.where(steps.terminated[0], 0.0, DISCOUNT).astype(np.float32),
        target[after, :, 0],
        online[after, :, 0],
    )
    np.testing.assert_allclose(priority[steps.valid[0]], np.abs(theirs)[steps.valid[0]], rtol=1e-5)


def sample_of(steps, probability=None):
    count = steps.reward.shape[1]
    even = np.full(count, 1 / 1000, np.float32)
    return Sample(steps, even if probability is None else probability, np.int32(1000))


def plain(steps):
    return dataclasses.replace(steps, observation=np.random.default_rng(5).normal(size=(*steps.is_first.shape, 2)))


def prioritized(beta, total_updates=10):
    return DQNConfig(
        replay=ReplayConfig(priority_exponent=0.6),
        **STILL,
        importance_sampling_exponent=beta,
        total_updates=total_updates,
    )


def test_importance_weights_correct_fully_at_end_of_run():
    dqn, probability = build_dqn(prioritized(0.5), SPEC, NETWORK), np.array([0.1, 0.4, 0.2], np.float32)
    first, last = (importance_weights(probability, np.ones(3, bool), dqn.beta(np.int32(n))) for n in (0, 10))
    np.testing.assert_allclose(first, [1.0, 0.5, 0.5**0.5], rtol=1e-6)
    np.testing.assert_allclose(last, [1.0, 0.25, 0.5], rtol=1e-6)


def test_update_multiplies_losses_by_importance_weights():
    config = dataclasses.replace(prioritized(1.0), huber_delta=None, optimizer=OptimizerConfig(epsilon=1.5e-4))
    agent, steps = make_dqn(config, SPEC, NETWORK), plain(windows(1, 2, seed=8))
    assert steps.valid.all()
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    probability = np.array([0.1, 0.4], np.float32)
    _, metrics, priority = update(state, sample_of(steps, probability), jax.random.key(0))
    np.testing.assert_allclose(metrics["loss/total"], 0.25 * (priority[0] ** 2 + 0.25 * priority[1] ** 2), rtol=1e-5)


@pytest.fixture(scope="module")
def learnt():
    """Agent, its update compiled, its first state, a sample, and states after 1, 2 and 3 gradient steps."""
    config = DQNConfig(
        epsilon_start=1.0,
        epsilon_end=0.0,
        epsilon_decay_fraction=1.0,
        total_updates=10,
        target_update_period=2,
        n_step=3,
        noisy=True,
        learning_rate=1e-2,
    )
    agent, sample = make_dqn(config, SPEC, NETWORK), sample_of(plain(windows(3)))
    first = jax.jit(agent.init)(jax.random.key(0))
    update, states = jax.jit(agent.update), [first]
    for step in range(3):
        state, metrics, priority = update(states[-1], sample, jax.random.key(step))
        states.append(state)
    return agent, update, sample, states, metrics, priority


def same(a, b):
    return all(jax.tree.leaves(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), a, b)))


def test_target_network_is_copied_every_period(learnt):
    _, _, _, states, _, _ = learnt
    networks = [state.params["network"] for state in states]
    assert same(states[1].extra.target, networks[0])
    assert same(states[2].extra.target, networks[2])
    assert same(states[3].extra.target, networks[2])
    assert not same(networks[1], networks[2])
    assert [int(state.extra.num_gradient_steps) for state in states] == [0, 1, 2, 3]


def test_a_gradient_step_counts_no_version_and_learns(learnt):
    _, _, _, states, metrics, priority = learnt
    assert int(states[3].num_updates) == 0
    assert priority.shape == (64,)
    assert (priority >= 0).all()
    assert all(np.isfinite(value) and value.shape == () and value.dtype == jnp.float32 for value in metrics.values())


def test_window_starting_with_reset_changes_no_bit(learnt):
    _, update, sample, states, _, _ = learnt
    junk = ~sample.trajectory.valid[0]
    assert junk.any()
    reward = np.where(junk, 1e3, sample.trajectory.reward).astype(np.float32)
    action = np.where(junk, 0, sample.trajectory.action).astype(np.int32)
    spoiled = dataclasses.replace(sample.trajectory, reward=reward, action=action)
    other, _, priority = update(states[0], dataclasses.replace(sample, trajectory=spoiled), jax.random.key(0))
    assert same(other, states[1])
    assert not priority[junk].any()


def test_noisy_layers_draw_from_the_key_of_the_gradient_step(learnt):
    _, update, sample, states, _, _ = learnt
    other, _, _ = update(states[0], sample, jax.random.key(9))
    assert not same(other.params["network"], states[1].params["network"])


def test_dqn_acts_with_epsilon_of_the_version(learnt):
    agent, _, _, states, _, _ = learnt
    assert float(states[0].params["epsilon"]) == 1.0
    later = agent.data.sync_acting_params(dataclasses.replace(states[3], num_updates=jnp.int32(5)))
    assert float(later.params["epsilon"]) == 0.5
    assert same(later.params["network"], states[3].params["network"])


def test_apex_rows_explore_at_their_own_rates():
    rows = 4_000
    config = dataclasses.replace(
        prioritized(1.0), epsilon_start=0.5, epsilon_end=0.5, apex_alpha=7.0, initial_priority="actor"
    )
    agent = make_dqn(config, MASKED, NETWORK)
    params = jax.jit(agent.init)(jax.random.key(0)).params
    legal = np.tile(np.array([1, 0, 1, 1], np.int8), (rows, 1))
    observation = {"state": np.ones((rows, 1), np.float32), "legal": legal}
    state = agent.initial_agent_state(rows)
    keys, first = jax.random.split(jax.random.key(1), rows), np.zeros(rows, bool)
    act = jax.jit(agent.act, static_argnums=5)
    best, _, _ = act(params, observation, state, first, keys, Mode.GREEDY)
    assert len(np.unique(best)) == 1
    action, extras, after = act(params, observation, state, first, keys, Mode.SAMPLE)
    explored = np.asarray(action != best)
    # 2/3 of 0.5^(1 + 7 i / (rows - 1)) explore to another action: its sums over halves, integrated by hand
    rates = 0.5 ** (1 + 7 * np.arange(rows) / (rows - 1)) * 2 / 3
    for half in (slice(0, rows // 2), slice(rows // 2, None)):
        spread = np.sqrt((rates[half] * (1 - rates[half])).sum())
        assert abs(explored[half].sum() - rates[half].sum()) < 5 * spread
    assert not (action == 1).any()
    np.testing.assert_array_equal(after["exponent"], state["exponent"])
    assert set(extras) == set(agent.extras) == {"value", "max_value"}
    greedy_rows = ~explored
    np.testing.assert_array_equal(extras["value"][greedy_rows], extras["max_value"][greedy_rows])
    assert (extras["value"][explored] < extras["max_value"][explored]).all()


def test_dqn_initial_priorities_are_actor_td_errors():
    config = DQNConfig(**STILL, discount=DISCOUNT, n_step=2, initial_priority="actor")
    steps = Trajectory(
        observation=(),
        is_first=(),
        action=(),
        reward=np.array([[1.0, 2.0, 3.0, 4.0]], np.float32).T,
        terminated=np.array([[False, False, True, False]]).T,
        truncated=np.zeros((4, 1), bool),
        valid=np.array([[True, True, True, False]]).T,
        policy_version=(),
        extras={
            "value": np.array([[0.5, 1.0, 1.5, 2.0]], np.float32).T,
            "max_value": np.array([[10.0, 20.0, 30.0, 40.0]], np.float32).T,
        },
    )
    priority = initial_priority(build_dqn(config, SPEC, NETWORK), steps)
    # 1 + 0.9 * 2 + 0.81 * 30 - 0.5;  2 + 0.9 * 3 - 1;  3 - 1.5
    np.testing.assert_allclose(priority[:, 0], [26.6, 3.7, 1.5], rtol=1e-5)
    cut = dataclasses.replace(steps, terminated=np.zeros((4, 1), bool), valid=np.ones((4, 1), bool))
    priority = initial_priority(build_dqn(config, SPEC, NETWORK), cut)
    # the value after the last step is not known: that before it stands in; 3 + 0.9 * 4 + 0.81 * 40 - 1.5
    np.testing.assert_allclose(priority[2, 0], 37.5, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 0}, "n_step must be at least 1: got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"reward_clip": -1.0}, "reward_clip must be positive: got -1.0"),
        ({"importance_sampling_exponent": 2.0}, r"importance_sampling_exponent must lie in \[0, 1\]"),
        ({"value_type": "c52"}, "value_type must be one of scalar, c51, quantile: got 'c52'"),
        ({"initial_priority": "mean"}, "initial_priority must be one of max, actor: got 'mean'"),
        ({"value_type": "c51", "num_atoms": 1}, "num_atoms must be at least 2"),
        ({"value_type": "c51", "v_min": 10.0}, "v_min must lie below v_max"),
        ({"value_type": "quantile", "huber_delta": None}, "needs huber_delta"),
        ({"value_type": "quantile", "value_rescale_epsilon": 1e-3}, "value_rescale_epsilon needs value_type='scalar'"),
        ({"value_type": "c51", "initial_priority": "actor"}, "expected initial_priority='max'"),
    ],
)
def test_dqn_rejects_invalid_settings(settings, message):
    with pytest.raises(UserError, match=message):
        DQNConfig(**settings)


def test_dqn_rejects_invalid_networks_actions_and_runs():
    with pytest.raises(UserError, match=r"expected network.core 'none', got 'gru'; use R2D2"):
        make_dqn(DQNConfig(**STILL), SPEC, NetworkConfig(core="gru"))
    many = EnvSpec("many", ArraySpec((2,), "float32"), MultiDiscreteSpec((2,), (2, 2), (0, 0)))
    with pytest.raises(UserError, match="expected one Discrete action"):
        make_dqn(DQNConfig(**STILL), many, NETWORK)
    with pytest.raises(UserError, match="needs the number of updates"):
        make_dqn(DQNConfig(), SPEC, NETWORK)
    with pytest.raises(UserError, match="the importance exponent changes"):
        make_dqn(prioritized(0.4, total_updates=0), SPEC, NETWORK)


def test_greedy_mode_acts_randomly_with_eval_epsilon():
    rows = 4_000
    config = DQNConfig(epsilon_start=1.0, epsilon_end=1.0, total_updates=10, eval_epsilon=0.3)
    legal = np.tile(np.array([1, 0, 1, 1], np.int8), (rows, 1))
    observation = {"state": np.ones((rows, 1), np.float32), "legal": legal}
    keys, first = jax.random.split(jax.random.key(1), rows), np.zeros(rows, bool)
    agents = [make_dqn(one, MASKED, NETWORK) for one in (config, dataclasses.replace(config, eval_epsilon=0.0))]
    params = jax.jit(agents[0].init)(jax.random.key(0)).params
    acts = [jax.jit(agent.act, static_argnums=5) for agent in agents]
    action, best = (np.asarray(act(params, observation, (), first, keys, Mode.GREEDY)[0]) for act in acts)
    assert len(np.unique(best)) == 1
    # An action in 3 legal ones is the best by chance.
    assert abs(np.mean(action != best) - 0.2) < 5 * np.sqrt(0.2 * 0.8 / rows)
    assert not (action == 1).any()
    some, _, _ = acts[0](params, jax.tree.map(lambda x: x[7:11], observation), (), first[7:11], keys[7:11], Mode.GREEDY)
    np.testing.assert_array_equal(some, action[7:11])
