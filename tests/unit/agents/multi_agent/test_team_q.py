"""VDN and QMIX: a team's steps and targets against loops; junk does not change a gradient step."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.api import LearnerState, Mode, ReplayConfig, Sample, Trajectory
from agents.multi_agent.qmix import QMIXConfig, TeamQ, TeamQExtra, loss, make_qmix, update, values_after_burn_in
from agents.multi_agent.vdn import VDNConfig, make_vdn
from agents.networks.branch import HeadSize
from agents.networks.config import NetworkConfig
from agents.networks.mixer import make_sum_mixer
from agents.networks.team_branch import make_team_branch
from agents.networks.team_values import TeamValues, make_team_values
from agents.ops.importance_weights import importance_weights
from agents.ops.team_targets import team_steps, team_targets
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec

ENVS, TEAM, STEPS, ACTIONS = 5, 2, 6, 3
ROWS = ENVS * TEAM
NETWORK = NetworkConfig(hidden_sizes=(8,))
RECURRENT = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=4)
CONFIG = VDNConfig(discount=0.9, epsilon_start=0.5, epsilon_end=0.5, target_update_period=1)
MASKED = {"mask": ArraySpec((ACTIONS,), "int8"), "observation": ArraySpec((2,), "float32")}


def team(observation=MASKED, action_mask=("mask",)) -> EnvSpec:
    action = DiscreteSpec(ACTIONS)
    agents = tuple(AgentSpec(f"agent_{place}", observation, action, action_mask) for place in range(TEAM))
    return EnvSpec("team", observation, action, agents=agents, action_mask=action_mask)


def trajectory(steps=STEPS, seed=0) -> Trajectory:
    """Environment 0: an agent dies at step 1, its partner at step 3. 1: both end at step 2. 2: cut at step 1. 3: an agent is
    there from step 3 only. 4: one ends as the other is cut at step 2. All go on with a step that only resets."""
    rng = np.random.default_rng(seed)
    shape = (STEPS, ROWS)
    terminated, truncated, valid = np.zeros(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
    terminated[1, 0], valid[2:5, 0] = True, False
    terminated[3, 1], valid[4, 1] = True, False
    terminated[2, 2:4], valid[3, 2:4] = True, False
    truncated[1, 4:6], valid[2, 4:6] = True, False
    valid[:3, 7] = False
    terminated[2, 8], truncated[2, 9], valid[3, 8:10] = True, True, False
    mask = (rng.random((STEPS + 1, ROWS, ACTIONS)) < 0.6).astype(np.int8)
    mask[..., 0] |= ~mask.any(-1)
    whole = Trajectory(
        observation={"mask": mask, "observation": rng.normal(size=(STEPS + 1, ROWS, 2)).astype(np.float32)},
        is_first=np.zeros((STEPS + 1, ROWS), bool),
        action=rng.integers(0, ACTIONS, shape).astype(np.int32),
        reward=(rng.normal(size=shape) * valid).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros(shape, np.int32),
        extras={},
    )
    seen = jax.tree.map(lambda leaf: leaf[: steps + 1], (whole.observation, whole.is_first))
    rest = jax.tree.map(lambda leaf: leaf[:steps], dataclasses.replace(whole, observation=(), is_first=()))
    return dataclasses.replace(rest, observation=seen[0], is_first=seen[1])


def sample_of(data) -> Sample:
    return Sample(data, np.full(ENVS, 0.1, np.float32), np.int32(10))


def rows_of(env):
    return range(env * TEAM, (env + 1) * TEAM)


def follows_by_loop(data, t, row):
    """Whether the agent is there, with a value to come, at observation t + 1."""
    last = t == len(data.valid) - 1
    if last or data.terminated[t, row] or data.truncated[t, row]:
        return bool(data.valid[t, row] and not data.terminated[t, row])
    return bool(data.valid[t + 1, row])


def targets_by_loop(data, next_value, discount, num_steps):
    """Forwards from each step, reward by reward."""
    steps = len(data.valid)
    found = np.zeros((steps, ENVS))
    for t, env in np.ndindex(steps, ENVS):
        weight = 1.0
        for s in range(t, min(t + num_steps, steps)):
            there = [row for row in rows_of(env) if data.valid[s, row]]
            if not there:
                break
            found[t, env] += weight * np.mean([data.reward[s, row] for row in there])
            weight *= discount
            goes_on = any(follows_by_loop(data, s, row) for row in rows_of(env))
            ends = s == steps - 1 or not any(data.valid[s + 1, row] for row in rows_of(env))
            if goes_on and (ends or s == t + num_steps - 1):
                found[t, env] += weight * next_value[s, env]
            if not goes_on or ends:
                break
    return found


@pytest.mark.parametrize("num_steps", [1, 3])
def test_team_targets_equal_a_loop(num_steps):
    data, rng = trajectory(), np.random.default_rng(4)
    next_value = rng.normal(size=(STEPS, ENVS)).astype(np.float32)
    steps = jax.jit(team_steps, static_argnums=1)(data, TEAM)
    got = jax.jit(partial(team_targets, discount=0.9, n_step=num_steps))(steps, next_value)
    np.testing.assert_allclose(got, targets_by_loop(data, next_value, 0.9, num_steps), rtol=1e-4, atol=1e-5)
    for t, row in np.ndindex(STEPS, ROWS):
        assert steps.follows[t, row] == follows_by_loop(data, t, row)
    np.testing.assert_array_equal(steps.valid, data.valid.reshape(STEPS, ENVS, TEAM).any(-1))


def test_an_episode_that_a_failure_cuts_bootstraps():
    data = trajectory()
    valid, flag = data.valid.copy(), np.zeros_like(data.valid)
    valid[:, :TEAM], valid[2, :TEAM] = True, False  # the failed step begins a slot
    steps = team_steps(dataclasses.replace(data, valid=valid, terminated=flag, truncated=flag), TEAM)
    assert (steps.terminated[1, 0], steps.truncated[1, 0]) == (False, True)
    assert steps.follows[1, :TEAM].all()


def team_q(config, net, optimizer=None) -> TeamQ:
    zero = optax.constant_schedule(0.0)
    return TeamQ(config, TEAM, net, optimizer, zero, zero, lambda num_updates: jnp.ones(()))


def linear_values() -> TeamValues:
    """Values that are the parameters times the observation's two numbers, an action; mixed by their sum."""
    built = make_team_values(NETWORK, team(), make_sum_mixer(), shared=True)

    def unroll(params, observation, state, is_first):
        return observation["observation"] @ params["agents"], state

    return built._replace(unroll=unroll)


@pytest.mark.parametrize(("double", "num_steps"), [(True, 1), (False, 2)])
def test_team_q_loss_priorities_and_metrics_match_loop(double, num_steps):
    length = STEPS - num_steps + 1
    config = dataclasses.replace(CONFIG, double=double, n_step=num_steps, sequence_length=length)
    data, rng = trajectory(), np.random.default_rng(5)
    online, target = ({"agents": rng.normal(size=(2, ACTIONS)).astype(np.float32), "mixer": {}} for _ in range(2))
    weight = rng.random(ENVS).astype(np.float32)
    of_online, of_target = (data.observation["observation"] @ params["agents"] for params in (online, target))
    chosen, next_value = np.zeros((STEPS, ENVS)), np.zeros((STEPS, ENVS))
    for t, env in np.ndindex(STEPS, ENVS):
        for row in rows_of(env):
            if data.valid[t, row]:
                chosen[t, env] += of_online[t, row, data.action[t, row]]
            if follows_by_loop(data, t, row):
                legal = [a for a in range(ACTIONS) if data.observation["mask"][t + 1, row, a]]
                judged = (of_online if double else of_target)[t + 1, row]
                next_value[t, env] += of_target[t + 1, row, max(legal, key=lambda a: judged[a])]
    error = targets_by_loop(data, next_value, 0.9, num_steps) - chosen
    counts = data.valid.reshape(STEPS, ENVS, TEAM).any(-1) & (np.arange(STEPS) < length)[:, None]
    got, (metrics, priorities) = jax.jit(partial(loss, team_q(config, linear_values())))(online, target, data, weight)
    np.testing.assert_allclose(got, 0.5 * (error**2 * weight)[counts].mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["value/mean"], chosen[counts].mean(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(metrics["value/absolute_error"], np.abs(error[counts]).mean(), rtol=1e-4)
    for env in range(ENVS):
        own = np.abs(error[counts[:, env], env])
        np.testing.assert_allclose(priorities[env], 0.9 * own.max() + 0.1 * own.mean(), rtol=1e-4)


def test_team_q_targets_get_no_gradient():
    data = trajectory()
    params = {"agents": np.ones((2, ACTIONS), np.float32), "mixer": {}}
    config = dataclasses.replace(CONFIG, sequence_length=STEPS)

    def of(online, target):
        return loss(team_q(config, linear_values()), online, target, data, np.ones(ENVS, np.float32))[0]

    by_online, by_target = jax.jit(jax.grad(of, argnums=(0, 1)))(params, params)
    assert np.abs(by_online["agents"]).max() > 0
    # The gradient of the chosen values alone, with the error as it is.
    assert np.abs(by_target["agents"]).max() == 0


@pytest.fixture(scope="module")
def learnt():
    """(agent, first state, update, data) of QMIX with deaths."""
    config = QMIXConfig(
        epsilon_start=1.0,
        epsilon_end=0.5,
        epsilon_decay_fraction=0.5,
        total_updates=4,
        target_update_period=2,
        sequence_length=STEPS,
        mixing_size=4,
    )
    agent = make_qmix(config, team(), NETWORK)
    return agent, jax.jit(agent.init)(jax.random.key(1)), jax.jit(agent.update), trajectory()


def test_qmix_update_moves_target_once_per_period(learnt):
    agent, state, update, data = learnt
    first, _, priorities = update(state, sample_of(data), jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(state, first)
    chex.assert_trees_all_equal(first.extra.target, state.extra.target)
    second, _, _ = update(first, sample_of(data), jax.random.key(0))
    nets = {"agents": second.params["agents"], "mixer": second.extra.mixer}
    chex.assert_trees_all_equal(second.extra.target, nets)
    assert (int(second.num_updates), int(second.extra.num_gradient_steps)) == (0, 2)
    assert (priorities.shape, priorities.dtype) == ((ENVS,), jnp.float32)
    assert (priorities >= 0).all()
    assert agent.data.agents_per_window == TEAM


def test_parameters_of_the_mixer_are_not_published():
    agent = make_qmix(QMIXConfig(total_updates=4), team(), NETWORK)
    state = jax.eval_shape(agent.init, jax.random.key(1))
    assert set(state.params) == {"agents", "epsilon"}
    assert jax.tree.leaves(state.extra.mixer)


def test_junk_of_agents_that_are_not_there_changes_no_bit(learnt):
    _, state, update, data = learnt
    needed = np.concatenate([data.valid, np.zeros((1, ROWS), bool)])
    for t, row in np.ndindex(STEPS, ROWS):
        needed[t + 1, row] |= follows_by_loop(data, t, row)

    def spoiled(leaf):
        return np.where(needed[..., None], leaf, np.ones_like(leaf))

    junk = dataclasses.replace(
        data,
        observation=jax.tree.map(spoiled, data.observation),
        action=np.where(data.valid, data.action, (data.action + 1) % ACTIONS).astype(np.int32),
        reward=np.where(data.valid, data.reward, 7.0).astype(np.float32),
    )
    one, other = (update(state, sample_of(each), jax.random.key(0)) for each in (data, junk))
    chex.assert_trees_all_equal(one, other)
    assert all(np.isfinite(value) and value.dtype == jnp.float32 for value in one[1].values())


def test_qmix_acts_legally_at_the_scheduled_epsilon(learnt):
    agent, state, _, data = learnt
    observation = jax.tree.map(lambda leaf: np.tile(leaf[0], (40, *(1,) * (leaf.ndim - 2))), data.observation)
    rows = 40 * ROWS
    act = jax.jit(agent.act, static_argnums=5)

    def actions(state, mode):
        keys = jax.random.split(jax.random.key(3), rows)
        return np.asarray(act(state.params, observation, (), np.ones(rows, bool), keys, mode)[0])

    def share_of_best(updates):
        newer = agent.data.sync_acting_params(dataclasses.replace(state, num_updates=jnp.asarray(updates, jnp.int32)))
        assert newer.params["epsilon"] == {0: 1.0, 1: 0.75, 3: 0.5}[updates]
        chosen = actions(newer, Mode.SAMPLE)
        assert observation["mask"][np.arange(rows), chosen].all()
        return np.mean(chosen == best)

    best = actions(state, Mode.GREEDY)
    assert observation["mask"][np.arange(rows), best].all()
    assert share_of_best(0) < share_of_best(1) < share_of_best(3) < 0.97


SLOW = pytest.mark.slow  # to compile


@pytest.mark.parametrize(
    ("network", "shared"),
    [
        pytest.param(NETWORK, True, id="forward-shared", marks=SLOW),
        pytest.param(NETWORK, False, id="forward-apart", marks=SLOW),
        pytest.param(RECURRENT, True, id="gru-shared"),
        pytest.param(RECURRENT, False, id="gru-apart", marks=SLOW),
    ],
)
def test_team_unroll_equals_single_steps(network, shared):
    spec = team()
    net = make_team_values(network, spec, make_sum_mixer(), shared=shared)
    params = jax.jit(net.init)(jax.random.key(0))
    data = trajectory()
    same = jax.tree.map(lambda leaf: np.repeat(leaf[:, ::TEAM], TEAM, axis=1), data.observation)
    is_first = data.is_first.copy()
    is_first[3, ::3] = True
    unroll, state = jax.jit(net.unroll), net.initial_state(ROWS)
    values, last = unroll(params, same, state, is_first)
    assert (values[:, ::TEAM] != values[:, 1::TEAM]).any(-1).all()
    for t in range(STEPS + 1):
        seen = jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], same)
        one, state = unroll(params, seen, state, is_first[t : t + 1])
        np.testing.assert_allclose(one[0], values[t], rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(state, last, rtol=1e-4, atol=1e-6)


def test_agents_of_their_own_weights_are_each_their_own_network():
    spec = team()
    branch = make_team_branch(NETWORK, spec, {"x": HeadSize(1, 1.0)}, shared=False)
    params, data = jax.jit(branch.init)(jax.random.key(0)), trajectory()
    unroll = jax.jit(branch.unroll)
    before = unroll(params, data.observation, (), data.is_first)[0]["x"]
    changed = jax.tree.map(lambda leaf: leaf.at[1].add(1.0), params)  # those of agent 1
    after = unroll(changed, data.observation, (), data.is_first)[0]["x"]
    np.testing.assert_array_equal(before[:, ::TEAM], after[:, ::TEAM])
    assert (before[:, 1::TEAM] != after[:, 1::TEAM]).all()


@SLOW
def test_burn_in_brings_the_state_up_to_date_without_a_gradient():
    net = make_team_values(RECURRENT, team(), make_sum_mixer(), shared=True)
    params = jax.jit(net.init)(jax.random.key(0))
    state = jax.random.normal(jax.random.key(1), (ROWS, 4))
    data = dataclasses.replace(trajectory(), agent_state=state)
    whole, _ = jax.jit(net.unroll)(params, data.observation, state, data.is_first)
    rest, values = jax.jit(partial(values_after_burn_in, net, burn_in=2))(params, data)
    np.testing.assert_allclose(values, whole[2:], rtol=1e-4, atol=1e-5)
    assert (rest.action.shape[0], rest.is_first.shape[0]) == (STEPS - 2, STEPS - 1)

    def first_value(leaves, burn_in):
        seen = {**data.observation, "observation": leaves}
        with_leaves = dataclasses.replace(data, observation=seen)
        return values_after_burn_in(net, params, with_leaves, burn_in)[1].sum()

    slopes = jax.jit(jax.grad(first_value), static_argnums=1)
    of_all, of_rest = (np.abs(slopes(data.observation["observation"], burn_in)) for burn_in in (0, 2))
    assert of_all[:2].max() > 0
    assert of_rest[:2].max() == 0
    assert of_rest[2:].max() > 0


def test_team_window_has_burn_in_steps_and_rewards():
    config = dataclasses.replace(CONFIG, burn_in=3, sequence_length=4, n_step=2, window_start="any", stride=8)
    data = make_vdn(config, team(), RECURRENT).data
    assert (data.sequence_length, data.window_start, data.stride, data.agents_per_window) == (8, "any", 8, TEAM)


def test_unevenly_drawn_windows_are_weighed_by_their_probability():
    config = dataclasses.replace(
        CONFIG, replay=ReplayConfig(priority_exponent=0.6), importance_sampling_exponent=1.0, sequence_length=STEPS
    )
    agent = make_vdn(config, team(), NETWORK)
    state, step = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    probability = np.array([0.1, 0.4, 0.2, 0.1, 0.2], np.float32)
    _, metrics, _ = step(state, dataclasses.replace(sample_of(trajectory()), probability=probability), None)
    weight = importance_weights(probability, np.ones(5, bool), 1.0)
    np.testing.assert_allclose(weight, [1.0, 0.25, 0.5, 1.0, 0.5])
    nets = {"agents": state.params["agents"], "mixer": state.extra.mixer}
    bound = agent.update.args[0]
    expected, _ = jax.jit(partial(loss, bound))(nets, state.extra.target, trajectory(), weight)
    np.testing.assert_allclose(metrics["loss/value"], expected, rtol=1e-5)


def test_a_target_may_follow_slowly():
    config = dataclasses.replace(CONFIG, tau=0.25)
    params = {"agents": np.ones((2, ACTIONS), np.float32), "mixer": {}}
    optimizer, net = optax.sgd(1.0), linear_values()
    extra = TeamQExtra({}, jax.tree.map(np.zeros_like, params), jnp.zeros((), jnp.int32))
    acting = {"agents": params["agents"], "epsilon": 0.0}
    state = LearnerState(acting, optimizer.init(params), jnp.zeros((), jnp.int32), extra)
    step = jax.jit(partial(update, team_q(config, net, optimizer)))
    after, _, _ = step(state, sample_of(trajectory()), None)
    np.testing.assert_allclose(after.extra.target["agents"], 0.25 * after.params["agents"], rtol=1e-6)
    assert (after.params["agents"] != params["agents"]).any()


def test_team_q_rejects_invalid_networks_and_actions():
    with pytest.raises(UserError, match="sequence_length 1 trains no memory: .* or use network.core 'none'"):
        make_vdn(VDNConfig(total_updates=4), team(), RECURRENT)
    with pytest.raises(UserError, match="burn_in 2 has no effect: network.core is 'none'"):
        make_vdn(VDNConfig(total_updates=4, burn_in=2), team(), NETWORK)
    box = ArraySpec((2,), "float32")
    with pytest.raises(UserError, match="expected one Discrete action, got ArraySpec"):
        make_vdn(CONFIG, EnvSpec("e", box, ArraySpec((1,), "float32", -1.0, 1.0)), NETWORK)
    agents = (AgentSpec("two", box, DiscreteSpec(2)), AgentSpec("three", box, DiscreteSpec(3)))
    with pytest.raises(UserError, match=r"as many actions of every agent of a team, got \{'two': 2, 'three': 3\}"):
        make_vdn(CONFIG, EnvSpec("e", box, DiscreteSpec(3), agents=agents), NETWORK)
    with pytest.raises(UserError, match="needs the number of updates of the whole run"):
        make_vdn(VDNConfig(), team(), NETWORK)


@pytest.mark.parametrize(
    "change",
    [
        {"n_step": 0},
        {"sequence_length": 0},
        {"burn_in": -1},
        {"discount": 1.1},
        {"learning_rate": 0.0},
        {"tau": 0.0},
        {"epsilon_start": 1.5},
        {"epsilon_decay_fraction": 0.0},
        {"mixing_size": 0},
    ],
)
def test_team_q_rejects_values_out_of_range(change):
    with pytest.raises(UserError, match=next(iter(change))):
        QMIXConfig(**change)
