"""Several policies in one environment do, each for its own agents, what they would do alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.a2c import A2CConfig, make_a2c
from agents.api import Agent, LearnerState, Mode, OnPolicy, Trajectory
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.multi_policy import (
    PolicyGroup,
    agent_indices,
    make_grouped,
    make_policies,
    policy_spec,
    split_teams,
)
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from tests.support.scripted_agents import Scripted

SPEC = ParallelSource(Scripted).spec()  # a, b, c observe 3, 4, 5 numbers and choose among 2, 3, 4 values
ENVS, STEPS = 4, 6
CONFIG = PPOConfig(num_epochs=1, num_minibatches=2)
MAPPING = {"b": "second", "*": "others"}
TWINS = EnvSpec(
    "twins",
    ArraySpec((3,), "float32"),
    DiscreteSpec(3),
    agents=tuple(AgentSpec(name, ArraySpec((3,), "float32"), DiscreteSpec(3)) for name in ("x1", "y", "x2")),
)


def named(names):
    agents = tuple(AgentSpec(name, TWINS.observation, TWINS.action) for name in names)
    return dataclasses.replace(TWINS, agents=agents)


def ppo(spec):
    return make_ppo(CONFIG, spec, NetworkConfig(hidden_sizes=(8,)))


def random_batch(spec, extras, seed=0):
    rng = np.random.default_rng(seed)
    rows = ENVS * spec.rows_per_env
    flags = {name: jnp.asarray(rng.random((STEPS, rows)) < 0.1) for name in ("terminated", "truncated")}
    return Trajectory(
        observation=jnp.asarray(rng.normal(size=(STEPS + 1, rows, *spec.observation.shape)), jnp.float32),
        is_first=jnp.asarray(rng.random((STEPS + 1, rows)) < 0.2),
        action=jnp.asarray(rng.integers(0, 2, (STEPS, rows)), jnp.int32),
        reward=jnp.asarray(rng.normal(size=(STEPS, rows)), jnp.float32),
        valid=jnp.asarray(rng.random((STEPS, rows)) < 0.9),
        policy_version=jnp.zeros((STEPS, rows), jnp.int32),
        extras={name: jnp.asarray(-rng.random((STEPS, rows)), jnp.float32) for name in extras},
        **flags,
    )


def rows_of(places, rows_per_env, array, axis):
    """By a loop: the rows of some agents, environment by environment."""
    rows = [env * rows_per_env + place for env in range(array.shape[axis] // rows_per_env) for place in places]
    return np.take(np.asarray(array), rows, axis)


@pytest.mark.parametrize(
    ("names", "first", "expected"),
    [
        (("hider_0", "hider_1", "seeker_0"), "", ((0, 1), (2,))),
        (("adversary_0", "adversary_1", "adversary_2", "agent_0"), "", ((0, 1, 2), (3,))),
        (("red_0", "blue_0", "red_1", "blue_1", "blue_2"), "", ((0, 2), (1, 3, 4))),
        (("first", "second"), "", ((0,), (1,))),
        (("player_0", "player_1", "player_2", "player_3"), "", ((0, 1), (2, 3))),
        (("player_0", "player_1", "player_2"), "player_1", ((1,), (0, 2))),
        (("leader_0", "hunter_0", "prey_0"), "prey_*", ((2,), (0, 1))),
    ],
)
def test_teams_are_those_of_names_or_a_pattern(names, first, expected):
    assert split_teams(named(names), first, "--team") == expected


@pytest.mark.parametrize(
    ("names", "first", "says"),
    [
        (
            ("player_0", "player_1", "player_2"),
            "",
            "got player_0, player_1, player_2; name those of one team by --team",
        ),
        (("leader_0", "hunter_0", "hunter_1", "prey_0"), "", "do not show two teams"),
        (("one_0",), "", "do not show two teams"),
        ((), "", "do not show two teams: got one agent"),
        (("red_0", "blue_0"), "*", "must match some of the agents red_0, blue_0, but not all"),
        (("red_0", "blue_0"), "green", "--team 'green' must match some"),
    ],
)
def test_what_is_not_two_teams_is_rejected(names, first, says):
    with pytest.raises(UserError, match=says):
        split_teams(named(names), first, "--team")


def test_agents_are_mapped_by_the_first_pattern_that_fits():
    assert agent_indices(TWINS, {"x*": "pair", "y": "single"}) == {"pair": (0, 2), "single": (1,)}
    assert agent_indices(TWINS, {"x1": "first", "x*": "later", "*": "later"}) == {"first": (0,), "later": (1, 2)}


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"z*": "p", "*": "p"}, r"no agent is called 'z\*': expected names or patterns of \['x1', 'y', 'x2'\]"),
        ({"x*": "p"}, "agent 'y' has no policy: add a pattern for it"),
    ],
)
def test_invalid_policy_mapping_is_rejected(mapping, says):
    with pytest.raises(UserError, match=says):
        agent_indices(TWINS, mapping)


def test_agents_with_different_actions_need_their_own_policies():
    with pytest.raises(UserError, match=r"agents \['a', 'c'\] have different actions"):
        make_policies(SPEC, MAPPING, ppo)
    with pytest.raises(UserError, match=r"agents \['a', 'b', 'c'\] have different actions"):
        make_policies(SPEC, {}, ppo)


def test_make_policies_rejects_invalid_frozen_policies():
    with pytest.raises(UserError, match=r"policies \['ghost'\] cannot be frozen: expected some of"):
        make_policies(TWINS, {"*": "all"}, ppo, {"ghost": None})
    with pytest.raises(UserError, match="cannot be frozen: no agent is mapped to them"):
        make_policies(TWINS, {}, ppo, {"ghost": None})
    with pytest.raises(UserError, match="has one agent"):
        make_policies(EnvSpec("e", ArraySpec((3,), "float32"), DiscreteSpec(2)), {"*": "all"}, ppo)


def each_its_own():
    groups = []
    for place, name in enumerate("abc"):
        spec = policy_spec(SPEC, [place])
        groups.append(PolicyGroup(f"policy_{name}", (place,), spec, ppo(spec)))
    return make_grouped(SPEC, groups), groups


def pairs():
    groups = []
    for name, places in agent_indices(TWINS, {"x*": "pair", "y": "single"}).items():
        spec = policy_spec(TWINS, places)
        groups.append(PolicyGroup(name, places, spec, ppo(spec)))
    return make_grouped(TWINS, groups), groups


@pytest.mark.parametrize(
    ("spec", "make", "mode"),
    [(SPEC, each_its_own, Mode.SAMPLE), pytest.param(TWINS, pairs, Mode.GREEDY, marks=pytest.mark.slow)],
)
def test_every_policy_acts_for_its_agents_as_it_would_alone(spec, make, mode):
    agent, groups = make()
    state = jax.jit(agent.init)(jax.random.key(3))
    batch = random_batch(spec, agent.extras)
    keys = jax.random.split(jax.random.key(4), ENVS * spec.rows_per_env)
    agent_state = agent.initial_agent_state(len(keys))
    action, extras, _ = agent.act(state.params, batch.observation[0], agent_state, batch.is_first[0], keys, mode)
    assert action.shape == (len(keys),)
    for group in groups:
        size = group.spec.observation.shape[0]
        seen = rows_of(group.agent_indices, spec.rows_per_env, batch.observation[0], 0)[:, :size]
        own_keys = jax.random.wrap_key_data(
            rows_of(group.agent_indices, spec.rows_per_env, jax.random.key_data(keys), 0)
        )
        expected, added, _ = group.agent.act(
            state.params[group.name], seen, (), np.ones(len(seen), bool), own_keys, mode
        )
        np.testing.assert_array_equal(rows_of(group.agent_indices, spec.rows_per_env, action, 0), expected)
        for name, values in added.items():
            stored = extras[f"{group.name}/{name}"]
            np.testing.assert_array_equal(rows_of(group.agent_indices, spec.rows_per_env, stored, 0), values)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "make"), [(TWINS, pairs)])
def test_every_policy_learns_from_its_own_rows_as_if_alone(spec, make):
    agent, groups = make()
    state, key = jax.jit(agent.init)(jax.random.key(3)), jax.random.key(5)
    batch = random_batch(spec, agent.extras)
    learnt, metrics = jax.jit(agent.update)(state, batch, key)
    assert int(learnt.num_updates) == 1
    for number, group in enumerate(groups):
        own = jax.tree.map(
            lambda x, group=group: jnp.asarray(rows_of(group.agent_indices, spec.rows_per_env, x, 1)), batch
        )
        extras = {name: own.extras[f"{group.name}/{name}"] for name in group.agent.extras}
        seen = own.observation[..., : group.spec.observation.shape[0]]
        own = dataclasses.replace(own, observation=seen, extras=extras)
        first = jax.jit(group.agent.init)(jax.random.key(0))
        first = dataclasses.replace(first, params=state.params[group.name], opt_state=state.opt_state[group.name])
        expected, found = jax.jit(group.agent.update)(first, own, jax.random.fold_in(key, number))
        for one, other in zip(
            jax.tree.leaves(learnt.params[group.name]), jax.tree.leaves(expected.params), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(metrics[f"{group.name}/loss/total"], found["loss/total"], rtol=1e-4)


def test_a_frozen_policy_acts_but_never_learns():
    trained = jax.jit(ppo(policy_spec(TWINS, [1])).init)(jax.random.key(9)).params
    agent = make_policies(TWINS, {"x*": "pair", "y": "single"}, ppo, {"single": trained})
    state = jax.jit(agent.init)(jax.random.key(3))
    learnt, metrics = jax.jit(agent.update)(state, random_batch(TWINS, agent.extras), jax.random.key(5))
    for one, other in zip(jax.tree.leaves(learnt.params["single"]), jax.tree.leaves(trained), strict=True):
        np.testing.assert_array_equal(one, other)
    moved = zip(jax.tree.leaves(learnt.params["pair"]), jax.tree.leaves(state.params["pair"]), strict=True)
    assert all(np.any(one != other) for one, other in moved)
    assert not any(name.startswith("single/") for name in metrics)


def test_policies_together_have_the_smallest_lag():
    own = {"single": lambda spec: make_a2c(A2CConfig(), spec, NetworkConfig(hidden_sizes=(4,)))}
    lag = lambda **options: make_policies(TWINS, {"x*": "pair", "y": "single"}, ppo, **options).data.max_lag  # noqa: E731
    assert (lag(), lag(own_agents=own), lag(own_agents=own, frozen={"single": {}})) == (None, 0, None)


@pytest.mark.slow  # to compile
def test_actions_are_padded_where_other_agents_have_more_numbers():
    agents = (
        AgentSpec("wide", ArraySpec((2,), "float32"), ArraySpec((3,), "float32", -1.0, 1.0)),
        AgentSpec("slim", ArraySpec((2,), "float32"), ArraySpec((1,), "float32", -1.0, 1.0)),
    )
    spec = EnvSpec("e", ArraySpec((2,), "float32"), ArraySpec((3,), "float32", -1.0, 1.0), agents=agents)
    agent = make_policies(spec, {"wide": "w", "slim": "s"}, ppo)
    state = agent.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 4)
    action, _, _ = agent.act(state.params, jnp.ones((4, 2)), ((), ()), jnp.ones(4, bool), keys, Mode.SAMPLE)
    assert action.shape == (4, 3)
    assert (action[::2] != 0).all()
    np.testing.assert_array_equal(action[1::2, 1:], 0.0)


def test_extras_of_one_name_may_differ_in_shape():
    """Each policy records its first observed number several times, and gets its own back for the update."""
    places, sizes = {"one": (0, 2), "two": (1,)}, {"one": 2, "two": 3}

    def noting(name):
        def act(params, observation, state, is_first, keys, mode):
            return jnp.zeros(len(keys), jnp.int32), {"note": jnp.tile(observation[:, :1], sizes[name])}, state

        def update(state, batch, key):
            return state, dict(batch.extras)

        state = LearnerState({}, (), jnp.int32(0))
        extras = {"note": ArraySpec((sizes[name],), "float32")}
        agent = Agent(name, lambda key: state, lambda num_rows: (), act, update, extras, OnPolicy())
        return PolicyGroup(name, places[name], policy_spec(TWINS, places[name]), agent)

    agent = make_grouped(TWINS, [noting("one"), noting("two")])
    batch = random_batch(TWINS, ())
    state, first, is_first = agent.init(jax.random.key(3)), batch.observation[0], batch.is_first[0]
    keys = jax.random.split(jax.random.key(4), len(is_first))
    _, extras, _ = agent.act(state.params, first, ((), ()), is_first, keys, Mode.SAMPLE)
    assert {name: extra.shape[1:] for name, extra in extras.items()} == {"one/note": (2,), "two/note": (3,)}
    assert {name: extra.shape for name, extra in agent.extras.items()} == {"one/note": (2,), "two/note": (3,)}
    batch = dataclasses.replace(batch, extras=jax.tree.map(lambda extra: extra[None], extras))
    _, metrics = agent.update(state, batch, jax.random.key(5))
    for name, size in sizes.items():
        seen = rows_of(places[name], TWINS.rows_per_env, first[:, :1], 0)
        np.testing.assert_array_equal(metrics[f"{name}/note"][0], np.tile(seen, size))
