"""MADDPG: targets and losses by loops, what critics see, and that nothing else reaches a gradient step."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig, Sample, Trajectory
from agents.multi_agent import maddpg
from agents.networks.config import NetworkConfig
from agents.networks.maddpg import MaddpgNetworks, joint_actions, make_maddpg_networks, with_own
from agents.networks.team_actions import make_team_actions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec

ENVS, TEAM, CHOICES = 6, 2, 3
ROWS = ENVS * TEAM
NETWORK = NetworkConfig(hidden_sizes=(8,), activation="relu")
CONFIG = maddpg.MADDPGConfig(discount=0.9, output_penalty=0.1, random_updates=0)
BOX = ArraySpec((2,), "float32", (-1.0, 0.0), (3.0, 2.0))
OBSERVED = {
    "mask": ArraySpec((CHOICES,), "int8"),
    "observation": ArraySpec((3,), "float32"),
    "state": ArraySpec((2,), "float32"),
}


def team(action) -> EnvSpec:
    mask = ("mask",) if isinstance(action, DiscreteSpec) else ()
    observation = OBSERVED if mask else {name: leaf for name, leaf in OBSERVED.items() if name != "mask"}
    agents = tuple(AgentSpec(f"agent_{place}", observation, action, mask) for place in range(TEAM))
    return EnvSpec("team", observation, action, agents=agents, action_mask=mask, critic_only=("state",))


CONTINUOUS, DISCRETE = team(BOX), team(DiscreteSpec(CHOICES))


def sample(spec, seed=0) -> Sample:
    """Windows of one step. 1: agent 0 dies, its partner stays. 2: both end. 3: both are cut. 4: agent 1 is not there. 5: resets."""
    rng = np.random.default_rng(seed)
    terminated, truncated, valid = np.zeros((1, ROWS), bool), np.zeros((1, ROWS), bool), np.ones((1, ROWS), bool)
    terminated[0, [2, 4, 5]] = True
    truncated[0, [6, 7]] = True
    valid[0, [9, 10, 11]] = False
    mask = (rng.random((2, ROWS, CHOICES)) < 0.6).astype(np.int8)
    mask[..., 1] |= ~mask.any(-1)
    leaves = {"mask": mask} | {
        name: rng.normal(size=(2, ROWS, size)).astype(np.float32) for name, size in (("observation", 3), ("state", 2))
    }
    leaves["state"] = np.repeat(leaves["state"][:, ::TEAM], TEAM, axis=1)
    discrete = isinstance(spec.action, DiscreteSpec)
    action = (
        rng.integers(0, CHOICES, (1, ROWS)).astype(np.int32) if discrete else rng.uniform([-1, 0], [3, 2], (1, ROWS, 2))
    )
    data = Trajectory(
        observation={name: leaves[name] for name in spec.observation},
        is_first=np.zeros((2, ROWS), bool),
        action=action if discrete else action.astype(np.float32),
        reward=(rng.normal(size=(1, ROWS)) * valid).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((1, ROWS), np.int32),
        extras={},
    )
    return Sample(data, np.full(ENVS, 0.1, np.float32), np.int32(10))


def linear_networks() -> MaddpgNetworks:
    """Policies: the parameters times the observation. Values: the parameter times 10 x the first agent's actions + the second's,
    plus the row's state and how many are there."""

    def value(params, observation, present, actions):
        there = jnp.repeat(present.reshape(-1, TEAM).sum(1), TEAM)
        return params * (10.0 * actions[:, 0].sum(-1) + actions[:, 1].sum(-1)) + observation["state"][:, 0] + there

    return MaddpgNetworks(None, lambda params, seen: seen["observation"] @ params, lambda seen: None, None, value)


def bound_for(spec, net=None) -> maddpg.MADDPG:
    actions = make_team_actions(spec, 0.1, 1.0)
    net = net or make_maddpg_networks(NETWORK, spec, actions.size, shared=False)
    return maddpg.MADDPG(CONFIG, TEAM, net, actions, lambda num_updates: jnp.float32(1.0), {})


# The last window, of reset steps alone, counts for nothing: the largest weight is that of the window before.
WEIGHTS = np.append(np.linspace(0.5, 1.0, ENVS - 1), 2.0).astype(np.float32)


def test_maddpg_targets_and_losses_match_loop():
    bound, drawn, rng = bound_for(CONTINUOUS, linear_networks()), sample(CONTINUOUS), np.random.default_rng(1)
    drawn = dataclasses.replace(drawn, probability=0.05 / WEIGHTS)  # with beta 1: WEIGHTS
    data = drawn.trajectory
    actor = 0.3 * rng.normal(size=(3, 2)).astype(np.float32)
    batch = maddpg.team_batch(bound, drawn, 0)
    unit = (data.action[0] - [1.0, 1.0]) / [2.0, 1.0]
    now, then = (np.tanh(data.observation["observation"][t] @ actor) for t in (0, 1))
    target, error, climbed = np.zeros(ROWS), np.zeros(ROWS), np.zeros(ROWS)
    valid = data.valid[0]
    for row in range(ROWS):
        pair = [row - row % TEAM, row - row % TEAM + 1]
        remains = [valid[other] and not data.terminated[0, other] for other in pair]
        sums = [then[other].sum() if there else 0.0 for other, there in zip(pair, remains, strict=True)]
        follows = 0.7 * (10.0 * sums[0] + sums[1]) + data.observation["state"][1, row, 0] + sum(remains)
        goes_on = valid[row] and not data.terminated[0, row]
        target[row] = data.reward[0, row] + (0.9 * follows if goes_on else 0.0)
        did = [unit[other].sum() if valid[other] else 0.0 for other in pair]
        rest = data.observation["state"][0, row, 0] + valid[pair].sum()
        if valid[row]:
            error[row] = target[row] - (0.5 * (10.0 * did[0] + did[1]) + rest)
            did[row % TEAM] = now[row].sum()
            climbed[row] = 0.5 * (10.0 * did[0] + did[1]) + rest
    got = jax.jit(partial(maddpg.targets, bound))(actor, 0.7, batch)
    np.testing.assert_allclose(got, target, rtol=1e-4, atol=1e-5)
    loss, (errors, _) = jax.jit(partial(maddpg.critic_loss, bound))(0.5, batch, got)
    np.testing.assert_allclose(errors, error, rtol=1e-4, atol=1e-4)
    expected = 0.5 * (np.repeat(WEIGHTS, TEAM) * error**2)[valid].mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    loss, found = jax.jit(partial(maddpg.actor_loss, bound))(actor, 0.5, batch, jax.random.key(0))
    outputs = data.observation["observation"][0] @ actor
    np.testing.assert_allclose(found["loss/actor"], -climbed[valid].mean(), rtol=1e-4)
    np.testing.assert_allclose(loss, -climbed[valid].mean() + 0.1 * (outputs**2)[valid].mean(), rtol=1e-4)


def test_an_actor_climbs_through_its_own_action_alone():
    actions = jnp.zeros((ROWS, TEAM, 2))

    def seen_by_row(own):
        return with_own(TEAM, actions, own).sum((1, 2))

    slopes = jax.jit(jax.jacobian(seen_by_row))(jnp.ones((ROWS, 2)))
    np.testing.assert_array_equal(slopes, np.eye(ROWS)[..., None] * np.ones(2))
    own = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
    joint = np.asarray(joint_actions(TEAM, own, np.arange(ROWS) != 3))
    for row in range(ROWS):
        for place in range(TEAM):
            other = row - row % TEAM + place
            np.testing.assert_array_equal(joint[row, place], np.zeros(2) if other == 3 else own[other])


@pytest.mark.parametrize(
    "shared", [pytest.param(True, id="shared", marks=pytest.mark.slow), pytest.param(False, id="apart")]
)
def test_critic_inputs_are_state_observations_and_actions(shared):
    net, data = make_maddpg_networks(NETWORK, DISCRETE, CHOICES, shared=shared), sample(DISCRETE).trajectory
    params, value = jax.jit(net.init_critic)(jax.random.key(0)), jax.jit(net.value)
    seen = jax.tree.map(lambda leaf: leaf[0], data.observation)
    present, actions = np.ones(ROWS, bool), np.random.default_rng(0).random((ROWS, TEAM, CHOICES)).astype(np.float32)
    before = value(params, seen, present, actions)
    assert (before[::TEAM] != before[1::TEAM]).all()  # each agent has a value of its own

    def after(name, rows, by=1):
        changed = seen[name].copy()
        changed[rows] += by
        return np.asarray(value(params, {**seen, name: changed}, present, actions)) != before

    np.testing.assert_array_equal(after("observation", 0), np.arange(ROWS) < TEAM)
    np.testing.assert_array_equal(after("state", slice(2, 4)), np.arange(ROWS) // TEAM == 1)
    assert not after("mask", slice(None)).any()
    more = actions.copy()
    more[5, 0] += 1.0
    np.testing.assert_array_equal(value(params, seen, present, more) != before, np.arange(ROWS) == 5)


DISCRETE_CASE = pytest.param((DISCRETE, True), id="discrete", marks=pytest.mark.slow)  # to compile


@pytest.fixture(scope="module", params=[pytest.param((CONTINUOUS, False), id="continuous"), DISCRETE_CASE])
def learnt(request):
    """(agent, first state, update, sample, spec)."""
    spec, shared = request.param
    replay = ReplayConfig(priority_exponent=0.6)
    config = dataclasses.replace(CONFIG, share_parameters=shared, random_updates=None, replay=replay, total_updates=9)
    agent = maddpg.make_maddpg(config, spec, NETWORK)
    return agent, jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update), sample(spec), spec


@pytest.mark.slow
def test_a_gradient_step_moves_everything_but_the_version(learnt):
    agent, state, update, drawn, _ = learnt
    after, metrics, priorities = update(state, drawn, jax.random.key(1))
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert (int(after.num_updates), int(after.extra.num_gradient_steps)) == (0, 1)
    pairs = [
        (state.params["actor"], after.params["actor"], after.extra.target_actor),
        (state.extra.critic, after.extra.critic, after.extra.target_critic),
    ]
    for old, new, target in pairs:
        assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))
        chex.assert_trees_all_close(
            target, jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b, old, new), rtol=1e-5, atol=1e-6
        )
    assert all(np.isfinite(value) and (value.shape, value.dtype) == ((), jnp.float32) for value in metrics.values())
    assert (priorities[:5] > 0).all()
    assert priorities[5] == 0
    assert agent.data.agents_per_window == TEAM


def test_junk_of_agents_that_are_not_there_changes_no_bit(learnt):
    _, state, update, drawn, _ = learnt
    data = drawn.trajectory
    remains = data.valid & ~data.terminated
    needed = np.concatenate([data.valid, remains])[..., None]
    absent = ~data.valid.reshape((1, ROWS, *(1,) * (data.action.ndim - 2)))
    junk = dataclasses.replace(
        data,
        observation=jax.tree.map(lambda leaf: np.where(needed, leaf, np.ones_like(leaf)), data.observation),
        action=np.where(absent, np.zeros_like(data.action), data.action),
        reward=np.where(data.valid, data.reward, 7.0).astype(np.float32),
    )
    one = update(state, drawn, jax.random.key(1))
    other = update(state, dataclasses.replace(drawn, trajectory=junk), jax.random.key(1))
    chex.assert_trees_all_equal(one, other)


def test_acting_is_uniform_until_first_gradient_step(learnt):
    agent, state, _, drawn, spec = learnt
    seen = jax.tree.map(lambda leaf: np.tile(leaf[0], (50, 1)), drawn.trajectory.observation)
    rows = 50 * ROWS
    act = jax.jit(agent.act, static_argnums=5)

    def actions(state, mode):
        return np.asarray(
            act(state.params, seen, (), np.ones(rows, bool), jax.random.split(jax.random.key(2), rows), mode)[0]
        )

    begun = dataclasses.replace(state.extra, num_gradient_steps=jnp.ones((), jnp.int32))
    begun = agent.data.sync_acting_params(dataclasses.replace(state, extra=begun))
    even, near, best = actions(state, Mode.SAMPLE), actions(begun, Mode.SAMPLE), actions(begun, Mode.GREEDY)
    np.testing.assert_array_equal(best, actions(state, Mode.GREEDY))
    if spec is DISCRETE:
        for chosen in (even, near, best):
            assert seen["mask"][np.arange(rows), chosen].all()
        assert (near == best).mean() > (even == best).mean() or (near != even).any()
        return
    low, high = BOX.bound("low"), BOX.bound("high")
    assert ((even >= low) & (even <= high)).all()
    np.testing.assert_allclose(even.mean(0), (low + high) / 2, atol=0.2)
    np.testing.assert_allclose(even.std(0), (high - low) / 12**0.5, rtol=0.1)
    np.testing.assert_allclose((near - best).std(0), 0.1 * (high - low) / 2, rtol=0.1)


def test_discrete_action_is_one_hot_with_softmax_gradient():
    actions = make_team_actions(DISCRETE, 0.0, 0.5)
    outputs, weights = jnp.array([[1.0, 0.0, -1.0]]), jnp.array([1.0, 2.0, 4.0])
    legal = jnp.array([[1, 1, 0]])
    key = jax.random.key(0)

    @jax.jit
    def relaxed(x):
        return actions.relaxed(x, legal, key)

    vector = relaxed(outputs)
    assert sorted(np.asarray(vector)[0]) == pytest.approx([0.0, 0.0, 1.0])
    assert vector[0, 2] == 0
    slope = jax.jit(jax.grad(lambda x: (relaxed(x) @ weights).sum()))(outputs)[0]
    noise = np.asarray(jax.random.gumbel(key, (1, 3)))[0]
    soft = np.exp((np.array([1.0, 0.0]) + noise[:2]) / 0.5)
    soft /= soft.sum()
    expected = soft * (np.array([1.0, 2.0]) - soft @ [1.0, 2.0]) / 0.5
    np.testing.assert_allclose(slope, [*expected, 0.0], rtol=1e-4, atol=1e-6)


def test_maddpg_rejects_invalid_networks_and_actions():
    box = ArraySpec((2,), "float32")
    with pytest.raises(UserError, match="expected finite bounds"):
        maddpg.make_maddpg(CONFIG, EnvSpec("e", box, box), NETWORK)
    other = ArraySpec((1,), "float32", -1.0, 1.0)
    agents = (AgentSpec("a", box, BOX), AgentSpec("b", box, other))
    with pytest.raises(UserError, match="expected the same actions of every agent"):
        maddpg.make_maddpg(CONFIG, EnvSpec("e", box, BOX, agents=agents), NETWORK)
    with pytest.raises(UserError, match="expected network.core 'none'"):
        maddpg.make_maddpg(CONFIG, CONTINUOUS, NetworkConfig(core="gru"))


@pytest.mark.parametrize(
    "change",
    [{"tau": 0.0}, {"temperature": 0.0}, {"exploration_noise": -0.1}, {"discount": 1.1}],
)
def test_maddpg_rejects_values_out_of_range(change):
    with pytest.raises(UserError, match=next(iter(change))):
        maddpg.MADDPGConfig(**change)
