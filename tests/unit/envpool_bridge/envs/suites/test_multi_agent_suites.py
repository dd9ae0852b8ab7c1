"""Suites of multi-agent environments, step by step against their packages used directly on the same seeds."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.function_source import as_source
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.envs.seeding import EpisodeSeeds
from envpool_bridge.envs.suites.masks_from_infos import InfoMasks, with_masks_of_infos
from envpool_bridge.errors import WorkerError
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import DiscreteSpec
from envpool_bridge.spec.tree import leaves
from tests.support.scripted_agents import Scripted

RUN_SEED = 7


def source_of(env_id, suite, **kwargs):
    return EnvConfig(env_id, suite, json.dumps(kwargs)).source()


def legal_action(spec, slot, t, rng):
    observation, rows = slot.observation, slot.action.shape[1]
    if spec.action_mask:
        return [rng.choice(np.flatnonzero(mask)) for mask in observation["action_mask"][t]]
    if isinstance(spec.action, DiscreteSpec):
        return rng.integers(0, min(agent.action.num_values for agent in spec.agents), rows)
    return rng.random((rows, *spec.action.shape))


def played(source, steps):
    """A slot of one environment that has stepped with random legal actions."""
    spec = source.spec()
    rows = source.make_rows(range(spec.rows_per_env), RUN_SEED, False)
    slot = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, rows.num_rows, steps, 1), {}))[0]
    rng = np.random.default_rng(0)
    rows.reset(EpisodeReset((0,) * rows.num_rows, (None,) * rows.num_rows), first_rows(slot))
    step_rows(slot, slice(0, steps)).prepare()
    for t in range(steps):
        slot.action[t] = legal_action(spec, slot, t, rng)
        rows.step(slot.action[t], step_rows(slot, t))
    rows.close()
    return spec, slot


def seed_of(episode):
    return EpisodeSeeds(RUN_SEED, 0).seed(episode)


def assert_shows(spec, slot, t, place, expected):
    """The row shows `expected`, padded with zeros where only other agents have more."""
    shown = slot.observation["observation"] if isinstance(slot.observation, dict) else slot.observation
    found, expected = shown[t, place], np.asarray(expected)
    if found.ndim == 1:
        np.testing.assert_array_equal(found[len(expected) :], 0)
        found = found[: len(expected)]
    np.testing.assert_array_equal(found, expected.astype(found.dtype))


def replayed(spec, slot, begin, step):
    """Walks through a slot beside a package: `begin(seed)` and `step(actions)` give what each agent should see and get."""
    episode, observations = 0, begin(seed_of(0))
    ended = False
    for place in range(spec.rows_per_env):
        assert_shows(spec, slot, 0, place, observations[place])
    for t in range(len(slot.reward)):
        if ended:
            episode += 1
            observations, ended = begin(seed_of(episode)), False
            assert not slot.valid[t].any()
            assert slot.is_first[t + 1].all()
            np.testing.assert_array_equal(slot.reward[t], 0)
        else:
            observations, rewards, terminated, truncated = step(slot.action[t])
            ended = terminated or truncated
            assert slot.valid[t].all()
            np.testing.assert_array_equal(slot.reward[t], np.asarray(rewards, np.float32))
            np.testing.assert_array_equal(slot.terminated[t], terminated)
            np.testing.assert_array_equal(slot.truncated[t], truncated)
        for place in range(spec.rows_per_env):
            assert_shows(spec, slot, t + 1, place, observations[place])
        yield t + 1, ended
    assert episode >= 2


@pytest.mark.parametrize("name", ["simple_spread_v3", "simple_tag_v3", "simple_speaker_listener_v4"])
@pytest.mark.parametrize("continuous", [False, True])
def test_mpe_equals_its_package(name, continuous):
    module = pytest.importorskip(f"mpe2.{name}")
    arguments = {"max_cycles": 8, "continuous_actions": continuous}
    spec, slot = played(source_of(name, "mpe", global_state=True, **arguments), 24)
    theirs = module.parallel_env(**arguments)
    names = theirs.possible_agents
    assert [agent.name for agent in spec.agents] == names

    def begin(seed):
        observations, _ = theirs.reset(seed=seed)
        return [observations[agent] for agent in names]

    def step(actions):
        given = {agent: actions[k] for k, agent in enumerate(names)}
        if continuous:
            given = {agent: action[: theirs.action_space(agent).shape[0]] for agent, action in given.items()}
        observations, rewards, _, truncated, _ = theirs.step(given)
        return [observations[a] for a in names], [rewards[a] for a in names], False, truncated[names[0]]

    for t, _ in replayed(spec, slot, begin, step):
        np.testing.assert_array_equal(slot.observation["state"][t], np.stack([theirs.state()] * len(names)))
    theirs.close()


def test_a_mean_team_reward_is_that_of_the_agents():
    pytest.importorskip("mpe2")
    _, own = played(source_of("mpe2/simple_tag_v3", "pettingzoo"), 20)
    _, team = played(source_of("mpe2/simple_tag_v3", "pettingzoo", team_reward="mean"), 20)
    np.testing.assert_array_equal(own.action, team.action)
    assert own.reward.std(1).max() > 0
    for place in range(4):
        np.testing.assert_allclose(team.reward[:, place], own.reward.mean(1), rtol=1e-6)


@pytest.mark.parametrize("game", ["connect_four_v3", "tictactoe_v3"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pettingzoo.*", "ignore:The old environment creation API")
def test_turn_based_game_equals_its_package(game):
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    import importlib

    spec, slot = played(source_of(f"pettingzoo/classic/{game}", "pettingzoo"), 80)
    theirs = importlib.import_module(f"pettingzoo.classic.{game}").env()
    names = theirs.possible_agents
    masks = slot.observation["action_mask"]
    total = np.zeros(2)

    def shown():
        return [theirs.observe(agent)["observation"] for agent in names]

    def begin(seed):
        theirs.reset(seed=seed)
        return shown()

    def step(actions):
        theirs.step(int(actions[names.index(theirs.agent_selection)]))
        rewards = [theirs.rewards[agent] for agent in names]
        total[:] += rewards
        return shown(), rewards, theirs.terminations[names[0]], False

    for t, ended in replayed(spec, slot, begin, step):
        for place, agent in enumerate(names):
            to_move = agent == theirs.agent_selection and not ended
            legal = theirs.observe(agent)["action_mask"] if to_move else np.eye(masks.shape[2])[0]
            np.testing.assert_array_equal(masks[t, place], legal)
    assert total.sum() == 0
    assert np.abs(slot.reward).sum() >= 2  # somebody won


def test_masks_in_infos_become_part_of_the_observation():
    class Tells(Scripted):
        def reset(self, seed=None, options=None):
            observations, infos = super().reset(seed, options)
            return observations, {
                name: {"action_mask": np.eye(number, dtype=np.int8)[0]} for number, name in enumerate(infos, 2)
            }

        def step(self, actions):
            return *super().step(actions)[:4], {"a": {"action_mask": np.array([0, 1])}, "b": {}}

    env = with_masks_of_infos(Tells())
    assert isinstance(env, InfoMasks)
    assert isinstance(env, ParallelEnv)
    assert env.observation_space("b")["action_mask"] == spaces.MultiBinary(3)
    assert env.reset()[0]["a"]["action_mask"].tolist() == [1, 0]
    seen = env.step({"a": 0, "b": 0})[0]
    assert [seen[name]["action_mask"].tolist() for name in "ab"] == [[0, 1], [1, 1, 1]]
    assert seen["a"]["observation"].shape == (3,)
    assert env.agents == ["a", "b"]


def test_masks_that_appear_after_the_first_reset_are_errors():
    late = {"b": {"action_mask": np.array([0, 1, 1])}}

    class Late(Scripted):
        at_reset = False

        def reset(self, seed=None, options=None):
            observations, infos = super().reset(seed, options)
            return observations, late if self.at_reset else infos

        def step(self, actions):
            return *super().step(actions)[:4], late

    with pytest.raises(WorkerError, match="step 1: ValueError: expected infos without 'action_mask', as at the first"):
        played(as_source(Late), 1)
    env = with_masks_of_infos(Late())
    env._env.at_reset = True
    with pytest.raises(ValueError, match="return masks with every reset too"):
        env.reset()
    assert with_masks_of_infos(Late(mask=True)).step({"a": 0, "b": 0})[4] == late  # its observations have masks


@pytest.mark.parametrize(("env_id", "players", "size", "actions"), [("Full", 2, 658, 20), ("Small", 3, 226, 18)])
def test_hanabi_is_dealt_and_played_as_its_engine_does(env_id, players, size, actions):
    pyspiel = pytest.importorskip("pyspiel")
    source = source_of(f"Hanabi-{env_id}", "hanabi", players=players, global_state=True)
    spec, slot = played(source, 60)
    assert spec.agents[0].observation["observation"].shape == (size,)
    assert spec.action == DiscreteSpec(actions)
    small = {"colors": 2, "ranks": 5, "hand_size": 2, "max_information_tokens": 3, "max_life_tokens": 1}
    game = pyspiel.load_game("hanabi", {"players": players, **(small if env_id == "Small" else {})})
    playing = {}

    def deal():
        while playing["state"].is_chance_node():
            outcomes = playing["state"].chance_outcomes()
            chosen = playing["rng"].choice([card for card, _ in outcomes], p=[chance for _, chance in outcomes])
            playing["state"].apply_action(int(chosen))

    def shown():
        return [playing["state"].observation_tensor(player) for player in range(players)]

    def begin(seed):
        playing.update(state=game.new_initial_state(), rng=np.random.default_rng(seed), score=0.0)
        deal()
        return shown()

    def step(actions):
        state = playing["state"]
        state.apply_action(int(actions[state.current_player()]))
        deal()
        gained = state.returns()[0] - playing["score"]
        playing["score"] += gained
        return shown(), [gained] * players, state.is_terminal(), False

    for t, ended in replayed(spec, slot, begin, step):
        state = playing["state"]
        np.testing.assert_array_equal(slot.observation["state"][t, 0], np.concatenate(shown()))
        for player in range(players):
            legal = [0] if ended or player != state.current_player() else state.legal_actions()
            np.testing.assert_array_equal(np.flatnonzero(slot.observation["action_mask"][t, player]), legal)
    assert (slot.reward != 0).any()


@pytest.mark.parametrize("layout", ["cramped_room", "counter_circuit_o_1order"])
def test_overcooked_equals_its_package(layout):
    pytest.importorskip("overcooked")
    from overcooked.mdp.actions import Action
    from overcooked.mdp.overcooked_mdp import OvercookedGridworld

    options = {"horizon": 120, "shaped_reward": 0.5, "team_reward": "own"}
    spec, slot = played(source_of(layout, "overcooked", global_state=True, **options), 300)
    theirs = OvercookedGridworld.from_layout_name(layout)
    playing = {}

    def shown():
        return theirs.lossless_state_encoding(playing["state"], horizon=120)

    def begin(seed):
        playing["state"] = theirs.get_standard_start_state()
        return shown()

    def step(actions):
        joint = [Action.INDEX_TO_ACTION[action] for action in actions]
        playing["state"], events = theirs.get_state_transition(playing["state"], joint)
        served, shaped = events["sparse_reward_by_agent"], events["shaped_reward_by_agent"]
        rewards = [soup + 0.5 * help for soup, help in zip(served, shaped, strict=True)]
        return shown(), rewards, False, playing["state"].timestep == 120

    for t, _ in replayed(spec, slot, begin, step):
        for place in range(2):
            np.testing.assert_array_equal(slot.observation["state"][t, place], shown()[0])
    assert slot.reward.any() or layout != "cramped_room"  # where random cooks help a soup along


def test_overcooked_rewards_the_team_and_evaluates_soups():
    pytest.importorskip("overcooked")
    source = source_of("cramped_room", "overcooked", horizon=200, shaped_reward=1.0)
    assert source.team_reward == "sum"
    _, shaped = played(source, 200)
    _, evaluated = played(source.for_evaluation(), 200)
    np.testing.assert_array_equal(shaped.action, evaluated.action)
    np.testing.assert_array_equal(shaped.reward[:, 0], shaped.reward[:, 1])
    assert shaped.reward.sum() > 0
    assert evaluated.reward.sum() == 0  # random cooks serve nothing


def test_random_starts_depend_on_the_seed_alone():
    pytest.importorskip("overcooked")
    source = source_of("cramped_room", "overcooked", horizon=2, random_start=True)
    _, one = played(source, 30)
    _, other = played(source, 30)
    np.testing.assert_array_equal(one.observation, other.observation)
    assert len({begun[0].tobytes() for begun in one.observation[::3]}) > 3


def test_overcooked_separates_recipes_in_one_process():
    pytest.importorskip("overcooked")
    from overcooked.mdp.overcooked_mdp import Recipe

    here = source_of("cramped_room", "overcooked").make_env()
    here.reset(seed=0)
    config = Recipe._conf
    there = source_of("cramped_room_tomato", "overcooked").make_env()
    there.reset(seed=0)
    assert Recipe._conf is not config
    here.step({"cook_0": 4, "cook_1": 4})
    assert Recipe._conf is config


SUITES = [
    ("mpe2", "simple_spread_v3", "mpe", {"global_state": True}),
    ("mpe2", "mpe2/simple_tag_v3", "pettingzoo", {"team_reward": "sum"}),
    ("pettingzoo", "pettingzoo/classic/tictactoe_v3", "pettingzoo", {}),
    ("pyspiel", "Hanabi-Small", "hanabi", {}),
    ("overcooked", "cramped_room", "overcooked", {"horizon": 6}),
]


@pytest.mark.parametrize(("package", "env_id", "suite", "kwargs"), SUITES)
def test_worker_processes_equal_one_process(package, env_id, suite, kwargs):
    pytest.importorskip(package)
    source = source_of(env_id, suite, **kwargs)
    spec, steps = source.spec(), 12
    agents = spec.rows_per_env
    alone, rng = played_rows(source, spec, 2, steps), np.random.default_rng(0)
    reset = EpisodeReset((0,) * agents, (None,) * agents)
    with EnvPool(source, PoolShape(2, 1, 1, agents, steps, 2), PoolOptions(run_seed=RUN_SEED)) as pool:
        pool.start([reset, reset])
        slot = pool.views[0]
        for t in range(steps):
            assert all(pool.wait_lane(lane, 60.0) for lane in range(pool.num_lanes))
            slot.action[t] = legal_action(spec, slot, t, rng)
            for lane in range(pool.num_lanes):
                pool.post_actions(lane)
        assert pool.acquire(60.0) == 0
        for name in ("reward", "terminated", "truncated", "valid", "is_first"):
            np.testing.assert_array_equal(getattr(slot, name), getattr(alone, name))
        for one, other in zip(leaves(slot.observation), leaves(alone.observation), strict=True):
            np.testing.assert_array_equal(one, other)
        del slot


def played_rows(source, spec, envs, steps):
    rows = source.make_rows(range(envs * spec.rows_per_env), RUN_SEED, False)
    slot = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, rows.num_rows, steps, 1), {}))[0]
    rng = np.random.default_rng(0)
    rows.reset(EpisodeReset((0,) * rows.num_rows, (None,) * rows.num_rows), first_rows(slot))
    step_rows(slot, slice(0, steps)).prepare()
    for t in range(steps):
        slot.action[t] = legal_action(spec, slot, t, rng)
        rows.step(slot.action[t], step_rows(slot, t))
    rows.close()
    return slot
