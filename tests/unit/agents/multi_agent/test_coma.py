"""COMA: its advantages and targets by loops, what its critic sees, and that nothing else reaches an update."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, Trajectory
from agents.multi_agent import coma
from agents.networks.coma import ComaNetworks, make_coma_networks, team_spec, team_view
from agents.networks.config import NetworkConfig
from agents.networks.distributions import categorical
from agents.ops.counterfactual import counterfactual_advantage, lambda_targets
from agents.ops.gradient_steps import init_progress
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.learner.mesh import LearnerMesh

ENVS, TEAM, STEPS, ACTIONS = 4, 2, 6, 3
ROWS = ENVS * TEAM
NETWORK = NetworkConfig(hidden_sizes=(8,))
CONFIG = coma.COMAConfig(num_critic_steps=2)


def team(observation, critic_only=(), count=TEAM) -> EnvSpec:
    action = DiscreteSpec(ACTIONS)
    agents = tuple(AgentSpec(f"agent_{place}", observation, action) for place in range(count))
    return EnvSpec("team", observation, action, agents=agents, critic_only=critic_only)


LOCAL = team(ArraySpec((2,), "float32"))
GLOBAL = team({"observation": ArraySpec((2,), "float32"), "state": ArraySpec((3,), "float32")}, ("state",))


def trajectory(spec, seed=0) -> Trajectory:
    """Episodes that terminate and are cut; the first agent of environment 0 dies at step 1, its partner goes on."""
    rng = np.random.default_rng(seed)
    shape = (STEPS, ROWS)
    terminated, truncated, valid = (np.zeros(shape, bool) for _ in range(3))
    valid[:] = True
    terminated[1, 0], valid[2:, 0] = True, False
    terminated[2, 2:4], valid[3, 2:4] = True, False
    truncated[1, 4:6], valid[2, 4:6] = True, False
    sizes = {"observation": 2, "state": 3}
    leaves = {name: rng.normal(size=(STEPS + 1, ROWS, size)).astype(np.float32) for name, size in sizes.items()}
    return Trajectory(
        observation=leaves if spec.critic_only else leaves["observation"],
        is_first=np.zeros((STEPS + 1, ROWS), bool),
        action=rng.integers(0, ACTIONS, shape).astype(np.int32),
        reward=(rng.normal(size=shape) * valid).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros(shape, np.int32),
        extras={"behavior_log_prob": np.full(shape, -np.log(ACTIONS), np.float32)},
    )


def updated(config, spec, data, network=NETWORK):
    agent = coma.make_coma(config, spec, network)
    return jax.jit(agent.update)(agent.init(jax.random.key(1)), data, jax.random.key(2))


def test_counterfactual_advantage_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    values, logits = rng.normal(size=(2, 3, 4, ACTIONS)).astype(np.float32)
    action = rng.integers(0, ACTIONS, (3, 4))
    expected = np.zeros((3, 4))
    for place in np.ndindex(3, 4):
        weights = [np.exp(logits[place][a]) for a in range(ACTIONS)]
        mean = sum(weights[a] * values[place][a] for a in range(ACTIONS)) / sum(weights)
        expected[place] = values[place][action[place]] - mean
    got = counterfactual_advantage(jnp.asarray(values), jnp.asarray(logits), jnp.asarray(action))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_under_the_agents_own_policy_the_mean_advantage_is_zero():
    rng = np.random.default_rng(1)
    values, logits = rng.normal(size=(2, 5, ACTIONS)).astype(np.float32) * 3
    of_each = [counterfactual_advantage(values, logits, jnp.full(5, a)) for a in range(ACTIONS)]
    probability = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    mean = sum(probability[:, a] * np.asarray(of_each[a]) for a in range(ACTIONS))
    np.testing.assert_allclose(mean, 0.0, atol=1e-5)
    assert np.abs(of_each).max() > 1.0


def targets_by_loop(data, next_value, discount, lambda_):
    """Backwards from each end, straight from the recursion in the docstring."""
    expected = np.zeros((STEPS, ROWS))
    for row in range(ROWS):
        for t in range(STEPS):
            if not data.valid[t, row]:
                continue
            end = next(
                s for s in range(t, STEPS) if data.terminated[s, row] or data.truncated[s, row] or s == STEPS - 1
            )
            target = 0.0 if data.terminated[end, row] else next_value[end, row]
            target = data.reward[end, row] + discount * target
            for s in range(end - 1, t - 1, -1):
                target = data.reward[s, row] + discount * ((1 - lambda_) * next_value[s, row] + lambda_ * target)
            expected[t, row] = target
    return expected


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_coma_targets_match_loop(lambda_):
    data = trajectory(LOCAL)
    next_value = np.random.default_rng(3).normal(size=(STEPS, ROWS)).astype(np.float32)
    got = lambda_targets(
        data.reward, next_value, data.terminated, data.truncated, data.valid, discount=0.9, lambda_=lambda_
    )
    np.testing.assert_allclose(got, targets_by_loop(data, next_value, 0.9, lambda_), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", [LOCAL, GLOBAL], ids=["observations", "state"])
def test_coma_critic_inputs_match_loop(spec):
    data = trajectory(spec)
    own = {"": data.observation} if spec is LOCAL else data.observation
    own = {name: leaf[:-1] * data.valid[..., None] for name, leaf in own.items()}
    view = team_view(spec, jax.tree.map(lambda leaf: leaf[:-1], data.observation), data.action, data.valid)
    assert ("team" in view) == (spec is LOCAL)
    for t, row in np.ndindex(STEPS, ROWS):
        first, place = row - row % TEAM, row % TEAM
        assert view["agent"][t, row] == place
        others = np.zeros((TEAM, ACTIONS))
        for other in range(TEAM):
            if other != place and data.valid[t, first + other]:
                others[other, data.action[t, first + other]] = 1.0
            if spec is LOCAL:
                np.testing.assert_array_equal(view["team"][other][t, row], own[""][t, first + other])
        np.testing.assert_array_equal(view["others"][t, row], others.ravel())
        for name, leaf in own.items():
            np.testing.assert_array_equal((view["own"][name] if name else view["own"])[t, row], leaf[t, row])


def test_action_values_depend_on_the_others_actions_only():
    net = make_coma_networks(NETWORK, GLOBAL)
    params, data = net.init(jax.random.key(0)), trajectory(GLOBAL)
    data = dataclasses.replace(data, valid=np.ones_like(data.valid))
    changed = data.action.copy()
    changed[:, ::TEAM] = (changed[:, ::TEAM] + 1) % ACTIONS  # of each environment's first agent
    seen = jax.tree.map(lambda leaf: leaf[:-1], data.observation)
    one, other = (
        np.asarray(net.action_values(params["critic"], team_view(GLOBAL, seen, action, data.valid)))
        for action in (data.action, changed)
    )
    np.testing.assert_array_equal(one[:, ::TEAM], other[:, ::TEAM])
    assert (one[:, 1::TEAM] != other[:, 1::TEAM]).any(-1).all()


def test_masks_are_no_input_of_the_critic_and_forbid_actions():
    spec = team({"action_mask": ArraySpec((ACTIONS,), "int8"), "observation": ArraySpec((2,), "float32")})
    agents = tuple(dataclasses.replace(agent, action_mask=("action_mask",)) for agent in spec.agents)
    spec = dataclasses.replace(spec, action_mask=("action_mask",), agents=agents)
    assert set(team_spec(spec).observation["own"]) == {"observation"}
    net = make_coma_networks(NETWORK, spec)
    mask = np.tile(np.array([1, 0, 1], np.int8), (ROWS, 1))
    observation = {"action_mask": mask, "observation": np.ones((ROWS, 2), np.float32)}
    logits, _ = net.step(net.init(jax.random.key(0)), observation, (), np.ones(ROWS, bool))
    assert (jax.nn.softmax(logits)[:, 1] == 0).all()


def linear_networks() -> ComaNetworks:
    """Policies that always choose action 2; values that are 100 x own action + 10 x the other's action + own observation."""

    def unroll(params, observation, state, is_first):
        return jnp.broadcast_to(jnp.array([0.0, 0.0, 1e6]), (*is_first.shape, ACTIONS)), state

    def action_values(params, view):
        choices = np.tile(np.arange(ACTIONS), TEAM)
        others = 10.0 * (view["others"] @ choices.astype(np.float32))
        return 100.0 * jnp.arange(ACTIONS) + (others + view["own"][..., 0])[..., None]

    return ComaNetworks(None, None, unroll, action_values, categorical(ACTIONS), lambda num_rows: ())


def test_targets_bootstrap_from_the_next_action_or_the_policy():
    data = trajectory(LOCAL)
    config = dataclasses.replace(CONFIG, discount=0.9, td_lambda=0.7)
    batch = coma.make_batch(config, linear_networks(), LOCAL, None, {"target_critic": None}, data, jax.random.key(0))
    next_value = np.zeros((STEPS, ROWS))
    cut = data.terminated | data.truncated
    for t, row in np.ndindex(STEPS, ROWS):

        def does(other, t=t):
            if cut[t, other] or t == STEPS - 1:
                return 2 if data.valid[t, other] and not data.terminated[t, other] else 0
            return data.action[t + 1, other] if data.valid[t + 1, other] else 0  # an absent agent adds nothing

        other = row + 1 if row % TEAM == 0 else row - 1
        next_value[t, row] = 100 * does(row) + 10 * does(other) + data.observation[t + 1, row, 0]
    expected = targets_by_loop(data, next_value, 0.9, 0.7)
    np.testing.assert_allclose(batch.target, expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(batch.weight, data.valid)


@pytest.mark.slow  # to compile
@pytest.mark.parametrize("spec", [LOCAL, GLOBAL], ids=["observations", "state"])
def test_junk_in_steps_without_an_action_changes_no_bit(spec):
    data = trajectory(spec)
    # The observation after a cut is the terminal one, which a value bootstraps from although the step there only resets.
    unseen = ~data.valid
    unseen[1:] &= ~data.truncated[:-1]

    def spoiled(leaf):
        return np.concatenate([np.where(unseen[..., None], 1e6, leaf[:-1]), leaf[-1:]]).astype(np.float32)

    junk = dataclasses.replace(
        data,
        observation=jax.tree.map(spoiled, data.observation),
        action=np.where(data.valid, data.action, (data.action + 1) % ACTIONS),
        reward=np.where(data.valid, data.reward, 7.0).astype(np.float32),
        extras={"behavior_log_prob": np.where(data.valid, data.extras["behavior_log_prob"], -90).astype(np.float32)},
    )
    (one, found), (other, _) = updated(CONFIG, spec, data), updated(CONFIG, spec, junk)
    chex.assert_trees_all_equal(one, other)
    assert all(np.isfinite(value) for value in found.values())


@pytest.mark.slow  # to compile
def test_the_critic_learns_first_and_the_policy_last_each_alone():
    agent = coma.make_coma(CONFIG, LOCAL, NETWORK)
    state, steps = agent.init(jax.random.key(1)), agent.gradient_steps
    assert steps.num_steps == 3
    prepared, _ = steps.prepare(state.params, state.extra, trajectory(LOCAL), jax.random.key(0), 0)
    progress = init_progress(state)
    for index, (moves, stays) in enumerate([("critic", "actor"), ("critic", "actor"), ("actor", "critic")]):
        grads, metrics = jax.jit(steps.gradient)(progress.params, prepared, index)
        after = jax.jit(steps.apply)(progress, grads, metrics)
        chex.assert_trees_all_equal(after.params[stays], progress.params[stays])
        chex.assert_trees_all_equal(after.opt_state[stays], progress.opt_state[stays])
        changed = [
            np.any(one != other)
            for one, other in zip(
                jax.tree.leaves(after.params[moves]), jax.tree.leaves(progress.params[moves]), strict=True
            )
        ]
        assert any(changed)
        progress = after


@pytest.mark.slow  # to compile
def test_the_target_network_follows_once_in_its_period():
    agent = coma.make_coma(dataclasses.replace(CONFIG, target_period=2), LOCAL, NETWORK)
    update, state = jax.jit(agent.update), agent.init(jax.random.key(1))
    first = state.extra["target_critic"]
    state, _ = update(state, trajectory(LOCAL), jax.random.key(0))
    chex.assert_trees_all_equal(state.extra["target_critic"], first)
    state, _ = update(state, trajectory(LOCAL, 1), jax.random.key(1))
    chex.assert_trees_all_equal(state.extra["target_critic"], state.params["critic"])
    assert int(state.num_updates) == 2
    assert update._cache_size() == 1


@pytest.mark.slow  # to compile
def test_a_policy_with_memory_unrolls_to_its_steps():
    network = NetworkConfig(hidden_sizes=(8,), core="gru", core_size=4)
    net, data = make_coma_networks(network, LOCAL), trajectory(LOCAL)
    params, state = net.init(jax.random.key(0)), net.initial_state(ROWS)
    is_first = data.is_first.copy()
    is_first[3, ::2] = True
    together, last = net.unroll(params, data.observation, state, is_first)
    for t in range(STEPS + 1):
        logits, state = net.step(params, data.observation[t], state, is_first[t])
        np.testing.assert_allclose(logits, together[t], rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(state, last, rtol=1e-4, atol=1e-6)
    remembering = dataclasses.replace(data, agent_state=net.initial_state(ROWS), is_first=is_first)
    learnt, metrics = updated(CONFIG, LOCAL, remembering, network)
    assert np.isfinite(metrics["loss/policy"])
    assert int(learnt.num_updates) == 1


def test_act_is_greedy_or_samples_with_its_log_probability():
    agent = coma.make_coma(CONFIG, GLOBAL, NETWORK)
    params, net = agent.init(jax.random.key(0)).params, make_coma_networks(NETWORK, GLOBAL)
    observation = jax.tree.map(lambda leaf: leaf[0], trajectory(GLOBAL).observation)
    keys, first = jax.random.split(jax.random.key(3), ROWS), np.ones(ROWS, bool)
    logits, _ = net.step(params, observation, (), first)
    greedy, _, _ = agent.act(params, observation, (), first, keys, Mode.GREEDY)
    np.testing.assert_array_equal(greedy, np.argmax(logits, -1))
    action, extras, _ = agent.act(params, observation, (), first, keys, Mode.SAMPLE)
    expected = np.asarray(jax.nn.log_softmax(logits))[np.arange(ROWS), np.asarray(action)]
    np.testing.assert_allclose(extras["behavior_log_prob"], expected, rtol=1e-5)
    blind = observation | {"state": observation["state"] + 1.0}
    np.testing.assert_array_equal(net.step(params, blind, (), first)[0], logits)


@pytest.mark.slow  # to compile
def test_over_four_devices_the_update_is_the_same():
    agent, data, states = coma.make_coma(CONFIG, LOCAL, NETWORK), trajectory(LOCAL), []
    for count in (1, 4):
        mesh = LearnerMesh(jax.local_devices()[:count])
        update = mesh.jit_update(agent, jax.random.key(5))
        state, batch = mesh.place_state(agent.init(jax.random.key(1))), jax.device_put(data, mesh.rows)
        if count == 4:
            text = update.lower(state, batch).compile().as_text()
            assert "all-reduce" in text
            assert "all-gather" not in text
        states.append(jax.device_get(update(state, batch)[0]))
    chex.assert_trees_all_close(*states, rtol=2e-5, atol=2e-6)


def test_coma_rejects_invalid_networks_and_actions():
    box = ArraySpec((2,), "float32")
    with pytest.raises(UserError, match="expected one Discrete action, got ArraySpec"):
        coma.make_coma(CONFIG, EnvSpec("e", box, ArraySpec((1,), "float32", -1.0, 1.0)), NETWORK)
    agents = (AgentSpec("two", box, DiscreteSpec(2)), AgentSpec("three", box, DiscreteSpec(3)))
    with pytest.raises(
        UserError, match=r"as many actions of every agent of a team, got \{'two': 2, 'three': 3\}; map agents"
    ):
        coma.make_coma(CONFIG, EnvSpec("e", box, DiscreteSpec(3), agents=agents), NETWORK)
    with pytest.raises(UserError, match="expected shared_torso null or false"):
        coma.make_coma(CONFIG, LOCAL, NetworkConfig(shared_torso=True))


@pytest.mark.parametrize(
    "change",
    [{"num_critic_steps": 0}, {"target_period": 0}, {"td_lambda": 1.1}, {"learning_rate": 0.0}, {"entropy_coef": -0.1}],
)
def test_coma_rejects_values_out_of_range(change):
    with pytest.raises(UserError, match=next(iter(change))):
        coma.COMAConfig(**change)
