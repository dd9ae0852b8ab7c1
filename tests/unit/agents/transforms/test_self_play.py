"""A pool of past selves: slots have the parameters of the members they name, act for their rows, and never learn."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState, Mode, Trajectory
from agents.catalog import AGENTS, fill_sizes
from agents.networks.config import NetworkConfig
from agents.ops.game_results import init_games, play_on
from agents.ops.opponent_library import init_library
from agents.ppo import PPOConfig, make_ppo
from agents.transforms import self_play
from agents.transforms.self_play import SelfPlayConfig, make_self_play
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec

SEEN, CHOSEN = ArraySpec((3,), "float32"), DiscreteSpec(3)
NAMES = ("red_0", "blue_0", "red_1", "blue_1")


def team_spec(names=NAMES):
    return EnvSpec("teams", SEEN, CHOSEN, agents=tuple(AgentSpec(name, SEEN, CHOSEN) for name in names))


SPEC, ENVS, STEPS = team_spec(), 8, 6
ROWS = ENVS * 4
CONFIG = SelfPlayConfig(slots=2, library_size=3, self_share=0.25, snapshot_every=2, reslot_every=3, team="red_*")


def ppo(core="none"):
    return make_ppo(PPOConfig(num_epochs=1, num_minibatches=2), SPEC, NetworkConfig(hidden_sizes=(8,), core=core))


def trees_equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@functools.cache
def jitted(function):
    return jax.jit(function, static_argnums=5)


def act(agent, params, state, seed=0, first=False, mode=Mode.SAMPLE):
    observation = jax.random.normal(jax.random.key(seed), (ROWS, 3))
    keys = jax.random.split(jax.random.key(seed + 1), ROWS)
    return jitted(agent.act)(params, observation, state, jnp.full(ROWS, first), keys, mode), observation, keys


def collected(agent, params, seed=0):
    """A trajectory of random rewards whose actions the agent chose; every environment ends at step 3."""
    rng, state = np.random.default_rng(seed), agent.initial_agent_state(ROWS)
    start, steps = state, []
    for t in range(STEPS):
        (action, extras, state), observation, _ = act(agent, params, state, seed + t, t == 0)
        steps.append((observation, action, extras))
    observation, action, extras = jax.tree.map(lambda *parts: jnp.stack(parts), *steps)
    at = np.arange(STEPS)[:, None] + np.zeros((1, ROWS), int)
    return Trajectory(
        observation=jnp.concatenate([observation, observation[:1]]),
        is_first=jnp.asarray(np.isin(np.concatenate([at, at[-1:] + 1]), (0, 5))),
        action=action,
        reward=jnp.asarray(rng.normal(size=(STEPS, ROWS)), jnp.float32),
        terminated=jnp.asarray(at == 3),
        truncated=jnp.zeros((STEPS, ROWS), bool),
        valid=jnp.asarray(at != 4),
        policy_version=jnp.zeros((STEPS, ROWS), jnp.int32),
        extras=extras,
        agent_state=start,
    )


def different_slots(agent, seed=0, plain=None):
    """A learner state whose learner and slots have different parameters."""
    state = jax.jit(agent.init)(jax.random.key(seed))
    keys = jax.random.split(jax.random.key(7), 2)
    slots = [jax.jit((plain or ppo()).init)(key).params for key in keys]
    params = {**state.params, "slots": jax.tree.map(lambda *parts: jnp.stack(parts), *slots)}
    return dataclasses.replace(state, params={**params, "members": jnp.array([4, 9])}), slots


def test_every_slot_plays_both_teams():
    state = make_self_play(ppo(), SPEC, CONFIG, ROWS).initial_agent_state(ROWS)
    slot, controller = (np.asarray(state[name]).reshape(ENVS, 4) for name in ("slot", "controller"))
    assert sorted(slot[:, 0]) == [-1, -1, 0, 0, 0, 1, 1, 1]
    teams = set()
    for env in range(ENVS):
        assert set(slot[env]) == {slot[env, 0]}
        red, blue = controller[env, [0, 2]], controller[env, [1, 3]]
        assert set(red) | set(blue) == {-1, slot[env, 0]}
        if slot[env, 0] >= 0:
            assert len(set(red)) == len(set(blue)) == 1
            teams.add((int(slot[env, 0]), int(red[0]) == -1))
    assert teams == {(0, True), (0, False), (1, True), (1, False)}
    assert np.asarray(state["env"]).tolist() == np.repeat(np.arange(ENVS), 4).tolist()


@pytest.mark.parametrize(("slots", "self_share"), [(1, 0.0), (2, 0.25), (3, 0.5), (4, 0.35), (5, 0.9)])
def test_the_least_environments_give_each_slot_both_teams(slots, self_share):
    config = dataclasses.replace(CONFIG, slots=slots, self_share=self_share)
    with pytest.raises(UserError, match="at least") as rejected:
        make_self_play(ppo(), SPEC, config, 4)
    least = int(str(rejected.value).split("--run.num-envs ")[1].split()[0])
    state = make_self_play(ppo(), SPEC, config, least).initial_agent_state(least)
    seats = {(int(slot), row % 4) for row, slot in enumerate(state["controller"]) if slot >= 0}
    assert seats == {(slot, row) for slot in range(slots) for row in range(4)}
    with pytest.raises(UserError, match=f"expected {2 * slots} environments"):
        make_self_play(ppo(), SPEC, config, least - 4)


@pytest.mark.parametrize("chosen", [slice(None), slice(4, 16)])
def test_each_row_is_acted_for_by_its_policy(chosen):
    agent, plain = make_self_play(ppo(), SPEC, CONFIG, ROWS), ppo()
    state, slots = different_slots(agent)
    rows = jax.tree.map(lambda leaf: leaf[chosen], agent.initial_agent_state(ROWS))
    observation = jax.random.normal(jax.random.key(3), (ROWS, 3))[chosen]
    keys, first = jax.random.split(jax.random.key(4), ROWS)[chosen], jnp.ones(ROWS, bool)[chosen]
    action, extras, _ = jitted(agent.act)(state.params, observation, rows, first, keys, Mode.SAMPLE)
    policies = [state.params["learner"], *slots]
    alone = [jitted(plain.act)(params, observation, (), first, keys, Mode.SAMPLE) for params in policies]
    for row, (controller, slot) in enumerate(zip(rows["controller"], rows["slot"], strict=True)):
        expected = alone[int(controller) + 1]
        assert int(action[row]) == int(expected[0][row])
        np.testing.assert_allclose(
            extras["behavior_log_prob"][row], expected[1]["behavior_log_prob"][row], rtol=1e-4, atol=1e-6
        )
        assert int(extras["opponent"][row]) == (-1 if slot < 0 else (4, 9)[int(slot)])
    greedy, extras, _ = jitted(agent.act)(state.params, observation, rows, first, keys, Mode.GREEDY)
    assert greedy.tolist() == jitted(plain.act)(policies[0], observation, (), first, keys, Mode.GREEDY)[0].tolist()
    assert set(extras["opponent"].tolist()) == {-1}


def test_slots_hold_the_members_they_name():
    agent = make_self_play(ppo(), SPEC, CONFIG, ROWS)
    state, update = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.update)
    entered, changes = {0: state.params["learner"]}, 0
    for number in range(1, 13):
        before = state.params
        batch = collected(agent, state.params, number)
        opponents = np.asarray(before["members"])[np.maximum(batch.agent_state["slot"], 0)]
        expected = np.where(np.asarray(batch.agent_state["slot"]) < 0, -1, opponents)
        assert np.array_equal(batch.extras["opponent"], np.broadcast_to(expected, (STEPS, ROWS)))
        state, metrics = update(state, batch, jax.random.key(number))
        if number % CONFIG.snapshot_every == 0:
            entered[len(entered)] = state.params["learner"]
        assert float(metrics["self_play/members"]) == min(len(entered), CONFIG.library_size)
        for slot, member in enumerate(state.params["members"].tolist()):
            held = jax.tree.map(lambda leaf, slot=slot: leaf[slot], state.params["slots"])
            assert member > len(entered) - 1 - CONFIG.library_size
            assert trees_equal(held, entered[member])
        moved = not np.array_equal(before["members"], state.params["members"])
        gone = before["members"].min() <= len(entered) - 1 - CONFIG.library_size
        assert not moved or gone or number % CONFIG.reslot_every == 0
        changes += moved
        assert not trees_equal(before["learner"], state.params["learner"])
    assert changes >= 2
    assert not trees_equal(entered[0], entered[1])


def test_rows_of_opponents_never_train():
    agent = make_self_play(ppo(), SPEC, CONFIG, ROWS)
    state, _ = different_slots(agent)
    batch = collected(agent, state.params)
    theirs = np.asarray(batch.agent_state["controller"]) >= 0

    def learned(batch):
        return jax.jit(agent.update)(state, batch, jax.random.key(5))[0].params["learner"]

    def with_noise(rows):
        noise = jnp.where(jnp.asarray(rows), 3.0, 0.0)
        return dataclasses.replace(
            batch, reward=batch.reward + noise, observation=batch.observation + noise[None, :, None]
        )

    assert trees_equal(learned(batch), learned(with_noise(theirs)))
    assert not trees_equal(learned(batch), learned(with_noise(~theirs)))


def test_results_are_those_of_the_learners_team():
    agent = make_self_play(ppo(), SPEC, CONFIG, ROWS)
    state = jax.jit(agent.init)(jax.random.key(0))
    batch = collected(agent, state.params)
    after, metrics = jax.jit(agent.update)(state, batch, jax.random.key(5))
    rows, wins, games = batch.agent_state, 0.0, 0
    for env in range(ENVS):
        mine = np.asarray(rows["controller"]).reshape(ENVS, 4)[env] < 0
        if mine.all():
            continue
        reward = np.asarray(batch.reward).reshape(STEPS, ENVS, 4)[:4, env]  # the episode ends at step 3
        wins, games = wins + (reward[:, mine].sum() > reward[:, ~mine].sum()), games + 1
    library = after.extra["library"]
    assert (float(library.wins[0]), float(library.games[0])) == (wins, games)
    assert float(metrics["self_play/games"]) == games == 6
    assert 0 < wins < games


@functools.cache
def unequal():
    """Three hunters and a prey in 8 environments, whose update returns what it may learn from; slots play in 6 of them."""

    def update(state, batch, key):
        return dataclasses.replace(state, num_updates=state.num_updates + 1), {"valid": batch.valid}

    spec = team_spec(("hunter_0", "hunter_1", "hunter_2", "prey_0"))
    return make_self_play(ppo()._replace(update=update), spec, dataclasses.replace(CONFIG, team=""), ROWS)


@functools.cache
def unequal_update():
    return jax.jit(unequal().update)


def update_of_unequal(rewards):
    """The state and metrics after a game of two steps in each environment, [8, 4] rewards at the first; then it resets."""
    agent, at = unequal(), np.arange(3)[:, None] + np.zeros((1, ROWS), int)
    start, zeros = agent.initial_agent_state(ROWS), np.zeros((3, ROWS), np.float32)
    batch = Trajectory(
        observation=np.zeros((4, ROWS, 3), np.float32),
        is_first=np.isin(np.concatenate([at, at[-1:] + 1]), (0, 3)),
        action=zeros.astype(np.int32),
        reward=np.where(at == 0, np.reshape(rewards, ROWS), 0.0).astype(np.float32),
        terminated=at == 1,
        truncated=at < 0,
        valid=at < 2,
        policy_version=zeros.astype(np.int32),
        extras=dict.fromkeys(ppo().extras, zeros)
        | {"opponent": np.broadcast_to(np.minimum(start["slot"], 0), zeros.shape)},  # member 0 in both slots
        agent_state=start,
    )
    learner, members = {"weight": np.zeros(1, np.float32)}, np.zeros(2, np.int32)
    library = init_library(learner, CONFIG.library_size)
    params = {"learner": learner, "slots": {"weight": np.zeros((2, 1), np.float32)}, "members": members}
    extra = {"agent": (), "library": library, "games": init_games(ENVS)}
    return unequal_update()(LearnerState(params, (), np.int32(0), extra), batch, jax.random.key(1))


# What acts for the three hunters and the prey of each environment: -1 is the learner. Every slot plays both teams.
UNEQUAL = [
    [-1, -1, -1, 0],
    [-1, -1, -1, 1],
    [0, 0, 0, -1],
    [-1, -1, -1, -1],  # a quarter of the environments has no slot
    [1, 1, 1, -1],
    [-1, -1, -1, 0],
    [-1, -1, -1, 1],
    [-1, -1, -1, -1],
]


def test_every_slot_plays_both_unequal_teams():
    state = unequal().initial_agent_state(ROWS)
    assert np.asarray(state["controller"]).reshape(ENVS, 4).tolist() == UNEQUAL
    slots = np.asarray(state["slot"]).reshape(ENVS, 4)
    assert slots.tolist() == [[slot] * 4 for slot in (0, 1, 0, -1, 1, 0, 1, -1)]


def test_the_loss_counts_the_learners_rows_of_both_teams():
    _, metrics = update_of_unequal(np.zeros((ENVS, 4)))
    mask = np.array(UNEQUAL).reshape(ROWS) == -1
    assert mask.sum() == 3 + 3 + 1 + 4 + 1 + 3 + 3 + 4
    assert np.array_equal(metrics["valid"], [mask, mask, np.zeros(ROWS, bool)])  # the last step only resets


def test_the_larger_mean_reward_of_a_team_wins():
    # Hunters and prey, and the learner's result against the slot.
    rewards = [
        [1.0, 1.0, 1.0, 2.0],  # hunters have more in sum and less in the mean: lost
        [4.0, 0.0, -1.0, 1.0],  # equal means: drawn
        [0.1, 0.1, 0.1, 0.3],  # the learner is the prey: won
        [9.0, 9.0, 9.0, 0.0],  # the learner plays itself: no game
        [-10.0, -10.0, -10.0, -10.0],  # drawn
        [5.0, 0.0, 0.0, 1.5],  # won
        [-1.0, -1.0, -1.0, -2.0],  # hunters have less in sum and more in the mean: won
        [0.0, 0.0, 0.0, 9.0],  # no game
    ]
    after, metrics = update_of_unequal(rewards)
    library = after.extra["library"]
    assert (float(library.wins[0]), float(library.games[0])) == (3.0 + 2 * 0.5, 6.0)
    assert float(metrics["self_play/games"]) == 6


def results_of(first_team, reward, valid=None, truncated=None):
    """Results of games of teams [A] by rewards [T, E, A]; the learner is the first team in the first half of the environments."""
    (steps, envs, agents), team = reward.shape, np.array(first_team, bool)
    seats = np.array([np.where(team, -1, 0), np.where(team, 0, -1)]).repeat(envs // 2, axis=0)
    flags = np.ones((steps, envs * agents), bool)
    batch = SimpleNamespace(
        reward=reward.reshape(flags.shape).astype(np.float32),
        valid=flags if valid is None else flags & valid,
        terminated=flags & (np.arange(steps) == steps - 1)[:, None],
        truncated=~flags if truncated is None else flags & truncated,
        extras={"opponent": np.zeros(flags.shape, np.int32)},
        agent_state={"controller": seats.ravel()},
    )
    of_envs = self_play._steps(SimpleNamespace(first_team=tuple(team.tolist())), batch)
    return play_on(init_games(envs), np.arange(envs), np.zeros(envs, np.int32), of_envs)[1]


def test_the_same_reward_for_all_agents_is_a_draw():
    reward = np.zeros((3, 6, 6)) + np.array([0.05, 0.1, 0.61] * 2)[:, None]  # sums of three are rounded
    ended = results_of((1, 1, 1, 0, 0, 0), reward)
    assert ended.counts[-1].all()
    assert ended.result[-1].tolist() == [0.5] * 6


def test_a_game_that_a_failure_cuts_does_not_count():
    # The step in progress is not valid, and the one before it is marked as the end of the episode.
    reward, at = np.zeros((5, 2, 2)), np.arange(5)[:, None]
    reward[:2, :, 0], reward[3:, :, 1] = 9.0, 1.0
    ended = results_of((1, 0), reward, valid=at != 2, truncated=(at == 1) | (at == 2))
    assert np.argwhere(ended.counts).tolist() == [[4, 0], [4, 1]]
    assert ended.result[-1].tolist() == [0.0, 1.0]  # of the game since then


def test_a_library_of_given_members_stays_as_it_is():
    given = [ppo().init(jax.random.key(seed)).params for seed in (11, 12, 13)]
    config = dataclasses.replace(
        CONFIG, snapshot_every=0, reslot_every=1, opponents="mixture", mixture=(0.0, 1.0, 1.0), members=("a", "b", "c")
    )
    agent = make_self_play(ppo(), SPEC, config, ROWS, given)
    state = jax.jit(agent.init)(jax.random.key(0))
    assert trees_equal(state.params["learner"], ppo().init(jax.random.key(0)).params)
    update, seen = jax.jit(agent.update), set()
    for number in range(8):
        for slot, member in enumerate(state.params["members"].tolist()):
            assert trees_equal(jax.tree.map(lambda leaf, slot=slot: leaf[slot], state.params["slots"]), given[member])
            seen.add(member)
        state, _ = update(state, collected(agent, state.params, number), jax.random.key(number))
    assert state.extra["library"].member.tolist() == [0, 1, 2]
    assert seen == {1, 2}


def test_a_changed_slot_starts_with_a_new_memory():
    agent = make_self_play(ppo("gru"), SPEC, CONFIG, ROWS)
    params = jax.jit(agent.init)(jax.random.key(0)).params
    (_, _, state), *_ = act(agent, params, agent.initial_agent_state(ROWS), 0, True)
    changed = {
        **params,
        "members": jnp.array([0, 1]),
    }  # the same parameters under another name: only the memory differs
    (_, _, same), *_ = act(agent, params, state, 1)
    (_, _, reset), *_ = act(agent, changed, state, 1)
    (_, _, fresh), *_ = act(agent, params, state, 1, True)
    replaced = np.asarray(state["controller"]) == 1
    for kept, new, first in zip(*(jax.tree.leaves(x["policy"]) for x in (same, reset, fresh)), strict=True):
        assert np.array_equal(new[replaced], first[replaced])
        assert np.array_equal(new[~replaced], kept[~replaced])
        assert not np.array_equal(kept[replaced], first[replaced])
    assert set(np.asarray(reset["opponent"])[np.asarray(state["slot"]) == 1]) == {1}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"slots": -1}, "slots must not be negative: got -1"),
        ({"library_size": 0}, "library_size must be at least 1: got 0"),
        ({"snapshot_every": -1}, "snapshot_every must not be negative: got -1"),
        ({"members": ("a", "b", "c", "d")}, "library_size must be at least the number of members, 4: got 3"),
        ({"self_share": 1.0}, r"self_share must lie in \[0, 1\): got 1.0"),
        ({"exponent": 0.0}, "exponent must be positive: got 0.0"),
        ({"opponents": "best"}, "opponents must be one of uniform, newest, hard, variance, mixture: got 'best'"),
        ({"opponents": "mixture"}, "mixture has the weights of opponents 'mixture'"),
        ({"mixture": (1.0,)}, "belongs to no others"),
        ({"opponents": "mixture", "mixture": (1.0, -1.0)}, "must have weights of at least 0, and one above"),
    ],
)
def test_bad_settings_are_rejected(changes, says):
    with pytest.raises(UserError, match=says):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("spec", "agent", "config", "rows", "says"),
    [
        (SPEC, "ppo", {"slots": 4}, ROWS, "expected 8 environments without self-play, got 6 of 8; use .* 40 at least"),
        (SPEC, "ppo", {"team": "green_*"}, ROWS, r"self_play.team 'green_\*' must match some of .*, but not all"),
        (
            team_spec(("a", "b", "c")),
            "ppo",
            {"team": ""},
            ROWS,
            "got a, b, c; name those of one team by self_play.team",
        ),
        (EnvSpec("one", SEEN, CHOSEN), "ppo", {"team": ""}, ROWS, "one: .* do not show two teams: got one agent"),
        (SPEC, "dqn", {}, ROWS, "policies that learn from trajectories, such as ppo: got dqn"),
    ],
)
def test_what_does_not_fit_is_rejected(spec, agent, config, rows, says):
    made = AGENTS[agent].make(
        fill_sizes(AGENTS[agent].config(), 10, STEPS, rows), spec, NetworkConfig(hidden_sizes=(8,))
    )
    with pytest.raises(UserError, match=says):
        make_self_play(made, spec, dataclasses.replace(CONFIG, **config), rows)
