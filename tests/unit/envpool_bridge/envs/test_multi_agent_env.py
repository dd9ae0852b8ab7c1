"""Rows of multi-agent environments: agents that die, join and differ, against a script whose every number is known."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.errors import BadEnvOutputError, UnsupportedSpaceError, UserError, WorkerError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, spec_from_dict, spec_to_dict
from envpool_bridge.spec.tree import items, lookup, take
from tests.support.scripted_agents import Alike, Scripted

ENVS, AGENTS, STEPS = 2, 3, 8
EPISODE = 5


def slot_of(spec, steps=STEPS, envs=ENVS):
    return allocate_slots(make_layout(spec, PoolShape(1, 1, 1, envs * spec.rows_per_env, steps, 1), {}))[0]


def played(source, actions=None, reset=None, steps=STEPS, envs=ENVS):
    spec = source.spec()
    slot = slot_of(spec, steps, envs)
    rows = source.make_rows(range(envs * spec.rows_per_env), 3, True)
    count = rows.num_rows
    rows.reset(reset or EpisodeReset((0,) * count, (None,) * count), first_rows(slot))
    step_rows(slot, slice(0, steps)).prepare()
    infos = []
    for t in range(steps):
        if actions is not None:
            slot.action[t] = actions[t]
        rows.step(slot.action[t], step_rows(slot, t))
        infos.append(rows.infos)
    rows.verify(take(slot.observation, slice(1, None)), slot.reward)
    return slot, rows, infos


def test_multi_agent_spec_pads_rows_for_all_agents():
    spec = ParallelSource(Scripted).spec()
    assert [agent.name for agent in spec.agents] == ["a", "b", "c"]
    assert [agent.observation.shape for agent in spec.agents] == [(3,), (4,), (5,)]
    assert [agent.action for agent in spec.agents] == [DiscreteSpec(2), DiscreteSpec(3), DiscreteSpec(4)]
    assert spec.observation == ArraySpec((5,), "float32")
    assert spec.action == DiscreteSpec(4)
    assert spec.rows_per_env == 3
    assert isinstance(Scripted(), ParallelEnv)
    assert spec_from_dict(spec_to_dict(spec)) == spec


def test_agents_are_written_in_their_rows_or_marked_absent():
    slot, _, infos = played(ParallelSource(Scripted))
    for env in range(ENVS):
        a, b, c = range(env * AGENTS, (env + 1) * AGENTS)
        np.testing.assert_array_equal(slot.valid[:, a], [1, 1, 1, 1, 1, 0, 1, 1])
        np.testing.assert_array_equal(slot.valid[:, b], [1, 1, 0, 0, 0, 0, 1, 1])
        np.testing.assert_array_equal(slot.valid[:, c], [0, 0, 0, 1, 1, 0, 0, 0])
        np.testing.assert_array_equal(slot.terminated[:, [a, b, c]].sum(0), [0, 2, 0])
        np.testing.assert_array_equal(np.flatnonzero(slot.terminated[:, b]), [1, 7])
        np.testing.assert_array_equal(np.flatnonzero(slot.truncated[:, a]), [4])
        np.testing.assert_array_equal(np.flatnonzero(slot.truncated[:, c]), [4])
        np.testing.assert_array_equal(np.flatnonzero(slot.is_first[:, a]), [0, 6])
        np.testing.assert_array_equal(np.flatnonzero(slot.is_first[:, c]), [0, 3, 6])
        np.testing.assert_array_equal(slot.reward[:, a], [1, 2, 3, 4, 5, 0, 1, 2])
        np.testing.assert_array_equal(slot.reward[:, b], [11, 12, 0, 0, 0, 0, 11, 12])
        np.testing.assert_array_equal(slot.reward[:, c], [0, 0, 0, 24, 25, 0, 0, 0])
        np.testing.assert_array_equal(slot.observation[2, b], [1, 2, 0, 1, 0])  # its last, with which it ended
        np.testing.assert_array_equal(slot.observation[3:6, b], np.zeros((3, 5)))
        np.testing.assert_array_equal(slot.observation[3, c], [2, 3, 0, 1, 2])
        np.testing.assert_array_equal(slot.observation[6, a], [0, 0, 1000, 0, 0])
    assert infos[1] == [{"n": 2}, {"n": 2}, {}] * ENVS


def test_agents_receive_actions_only_while_present():
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (STEPS, ENVS * AGENTS))
    _, rows, _ = played(ParallelSource(Scripted), actions)
    for number, env in enumerate(rows._envs):
        a, b, c = range(number * AGENTS, (number + 1) * AGENTS)
        expected = [{"a": actions[t, a], "b": actions[t, b]} for t in (0, 1)]
        expected += [
            {"a": actions[2, a]},
            {"a": actions[3, a], "c": actions[3, c]},
            {"a": actions[4, a], "c": actions[4, c]},
        ]
        expected += [{"a": actions[t, a], "b": actions[t, b]} for t in (6, 7)]
        assert env.actions == expected


def test_environment_seeds_are_independent_of_other_rows():
    _, together, _ = played(ParallelSource(Scripted))
    source = ParallelSource(Scripted)
    alone = source.make_rows(range(3, 6), 3, False)
    alone.reset(EpisodeReset((0,) * 3, (None,) * 3), first_rows(slot_of(source.spec(), envs=1)))
    seeds = [env.seeds for env in together._envs]
    assert seeds[0] != seeds[1]
    assert alone._envs[0].seeds == seeds[1][:1]


@pytest.mark.parametrize(("team_reward", "expected"), [("sum", [12, 14, 3, 28, 30]), ("mean", [6, 7, 3, 14, 15])])
def test_a_team_reward_is_that_of_the_agents_that_acted(team_reward, expected):
    slot, _, _ = played(ParallelSource(Scripted, team_reward=team_reward))
    np.testing.assert_array_equal(slot.reward[:EPISODE, 0], expected)
    np.testing.assert_array_equal(slot.reward[:EPISODE, 1], [*expected[:2], 0, 0, 0])


def test_global_state_is_recorded_with_each_observation():
    source = ParallelSource(Scripted, global_state=True)
    assert source.spec().critic_only == ("state",)
    slot, _, _ = played(source)
    np.testing.assert_array_equal(slot.observation["state"][:, 0, 0], [0, 1, 2, 3, 4, 5, 0, 1, 2])
    np.testing.assert_array_equal(slot.observation["observation"][1, 4], [1, 1, 0, 1, 0])
    with pytest.raises(UserError, match="offers no global state"):
        ParallelSource(Stateless, global_state=True).spec()


class Stateless(Scripted):
    state = None


def test_masks_are_recorded_and_absent_agents_may_do_anything():
    source = ParallelSource(lambda: Scripted(mask=True))
    slot, _, _ = played(source)
    np.testing.assert_array_equal(slot.observation["action_mask"][1, :3], [[0, 1, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize("steps", [2, 4, 5, 7])
def test_an_episode_is_played_again_up_to_where_it_was(steps):
    class WithoutJoining(Scripted):
        def step(self, actions):
            result = super().step(actions)
            if "c" in self.agents:
                self.agents.remove("c")
                del result[0]["c"]
            return result

    source = ParallelSource(WithoutJoining)
    rng = np.random.default_rng(1)
    actions = rng.integers(0, 2, (12, ENVS * AGENTS)).astype(np.int32)
    whole, _, _ = played(source, actions, steps=12)
    begin = max((t + 1 for t in range(steps) if whole.is_first[t + 1, 0]), default=0)
    episode = int(whole.is_first[1 : steps + 1, 0].sum())
    replayed = tuple(actions[begin:steps, row] for row in range(ENVS * AGENTS))
    again, rows, _ = played(source, actions[steps:], EpisodeReset((episode,) * (ENVS * AGENTS), replayed), 12 - steps)
    names = ("reward", "terminated", "truncated", "valid")
    for name in names:
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name)[steps:])
    # The script numbers episodes by the resets it has seen; a replay has seen fewer.
    np.testing.assert_array_equal(again.observation[1:, :, :2], whole.observation[steps + 1 :, :, :2])
    assert rows._envs[0].seeds[0] == ParallelSource(WithoutJoining).make_rows(range(3), 3, False)._seeds[0].seed(
        episode
    )


@pytest.mark.parametrize("steps", [3, 7, 8, 9, 13])
def test_late_joins_do_not_change_the_replayed_episode(steps):
    """Agent "c" joins late in each episode, so its row counts two starts for each."""
    source = ParallelSource(Scripted)
    whole, rows, _ = played(source, steps=14)
    starts = whole.is_first[1 : steps + 1]
    last = steps - np.argmax(starts[::-1], axis=0)
    begins = np.where(starts.any(axis=0), last, 0)
    actions = tuple(whole.action[begin:steps, row] for row, begin in enumerate(begins))
    reset = EpisodeReset(tuple(starts.sum(axis=0).tolist()), actions)
    again, restored, _ = played(source, whole.action[steps:], reset, 14 - steps)
    episode = int(starts[:, 0].sum())
    for before, after in zip(rows._envs, restored._envs, strict=True):
        assert after.seeds[0] == before.seeds[episode]
    if len(set(begins[:AGENTS].tolist())) == 1:  # otherwise the environments start their episodes again
        for name in ("reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(again, name), getattr(whole, name)[steps:])


@pytest.mark.parametrize("mask", [False, True])
def test_homogeneous_agents_equal_separate_writes(mask, monkeypatch):
    source = ParallelSource(partial(Alike, mask), global_state=True)
    actions = np.random.default_rng(2).integers(0, 2, (STEPS, ENVS * AGENTS)).astype(np.int32)
    at_once, rows, infos = played(source, actions)
    assert rows._alike is not None
    monkeypatch.setattr("envpool_bridge.envs.multi_agent_env.are_homogeneous", lambda spec: False)
    one_by_one, others, other_infos = played(source, actions)
    assert others._alike is None
    for path, expected in items(one_by_one.observation):
        np.testing.assert_array_equal(lookup(at_once.observation, path), expected)
    for name in ("is_first", "reward", "terminated", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(at_once, name), getattr(one_by_one, name))
    assert infos == other_infos
    assert rows._envs[0].actions == others._envs[0].actions


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda r: r[0].__setitem__("b", np.zeros(5)),
            "agent b, row 1, step 1: bad observation: expected dtype float32",
        ),
        (
            lambda r: r[0].__setitem__("a", np.full(5, np.nan, np.float32)),
            "agent a, row 0, step 1: bad observation: expected a finite value",
        ),
        (lambda r: r[1].__setitem__("b", 1e39), "agent b, row 1, step 1: bad reward: expected a finite float32"),
        (
            lambda r: r[1].__setitem__("b", float("nan")),
            "agent b, row 1, step 1: bad reward: expected a finite float32",
        ),
        (lambda r: r[3].__setitem__("a", 0), "agent a, row 0, step 1: bad truncated: expected a bool, got int 0"),
    ],
)
def test_bad_output_of_a_homogeneous_agent_names_it(change, says):
    class Wrong(Alike):
        def step(self, actions):
            result = super().step(actions)
            if self.step_number == 1:
                change(result)
            return result

    with pytest.raises(BadEnvOutputError, match=says):
        played(ParallelSource(Wrong))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda r: r[0].__setitem__("a", np.zeros(3)),
            "agent a, row 0, step 1: bad observation: expected dtype float32",
        ),
        (
            lambda r: r[0].__setitem__("b", np.zeros(9, np.float32)),
            r"agent b, row 1, step 1: bad observation: expected shape \(4,\)",
        ),
        (lambda r: r[1].__setitem__("b", None), "agent b, row 1, step 1: bad reward: expected a number"),
        (lambda r: r[2].__setitem__("a", 1), "agent a, row 0, step 1: bad terminated: expected a bool, got int 1"),
        (lambda r: r[3].pop("a"), r"row 0, step 1: bad truncated: expected one of each of \['a', 'b'\], got \['b'\]"),
        (
            lambda r: r[0].__setitem__("z", 0),
            r"bad observation: expected one of each of \['a', 'b'\], got \['a', 'b', 'z'\]",
        ),
    ],
)
def test_bad_output_of_an_agent_names_it(change, says):
    class Wrong(Scripted):
        def step(self, actions):
            result = super().step(actions)
            change(result)
            return result

    with pytest.raises(BadEnvOutputError, match=says):
        played(ParallelSource(Wrong))


@pytest.mark.parametrize("env", [Scripted, Alike])
@pytest.mark.parametrize(
    ("stays_at", "agents", "says"),
    [
        (2, ["a", "b"], "agent b, row 1, step 2: bad terminated: expected an agent that ends to leave env.agents, got"),
        (5, ["a", "c"], r"agent a, row 0, step 5: bad truncated: .* to leave env.agents, got \['a', 'c'\]"),
    ],
)
def test_an_agent_that_ends_must_leave_the_environment(env, stays_at, agents, says):
    class Forgets(env):
        def step(self, actions):
            result = super().step(actions)
            if self.step_number == stays_at:
                self.agents = list(agents)
            return result

    with pytest.raises(BadEnvOutputError, match=says):
        played(ParallelSource(Forgets))


@pytest.mark.parametrize("env", [Scripted, Alike])
def test_present_agents_must_be_observed(env):
    class Hides(env):
        def step(self, actions):
            result = super().step(actions)
            if self.step_number == 3:
                del result[0]["c"]
            return result

    class HidesFirst(env):
        def reset(self, seed=None, options=None):
            observations, infos = super().reset(seed, options)
            return {"a": observations["a"]}, infos

    with pytest.raises(BadEnvOutputError, match=r"step 3: bad observation: .* env.agents, \['a', 'c'\], got \['a'\]"):
        played(ParallelSource(Hides))
    with pytest.raises(BadEnvOutputError, match=r"step 0: bad observation: .* env.agents, \['a', 'b'\], got \['a'\]"):
        played(ParallelSource(HidesFirst))


def test_a_wrong_step_result_names_the_row_of_the_run():
    class Wrong(Scripted):
        def step(self, actions):
            return super().step(actions)[:4]

    source = ParallelSource(Wrong)
    slot, rows = slot_of(source.spec(), envs=1), source.make_rows(range(6, 9), 3, False)
    rows.reset(EpisodeReset((0,) * 3, (None,) * 3), first_rows(slot))
    with pytest.raises(BadEnvOutputError, match="row 6, step 1: bad step result: expected five dicts by agent"):
        rows.step(slot.action[0], step_rows(slot, 0))


def test_rows_that_split_an_environment_are_rejected():
    source = ParallelSource(Scripted)
    with pytest.raises(UserError, match="expected rows of whole environments, got 4 from row 0"):
        source.make_rows(range(4), 0, False)
    with pytest.raises(UserError, match="got 3 from row 1"):
        source.make_rows(range(1, 4), 0, False)


def test_agents_too_different_to_share_rows_are_rejected():
    class Different(Scripted):
        def observation_space(self, agent):
            return spaces.Discrete(3) if agent == "b" else super().observation_space(agent)

    with pytest.raises(
        UnsupportedSpaceError, match="agents 'a' and 'b' cannot share rows: observation differs in kind"
    ):
        ParallelSource(Different).spec()


def test_an_exception_names_the_rows_and_the_step():
    class Raises(Scripted):
        def step(self, actions):
            raise ValueError("broken")

    with pytest.raises(WorkerError, match="Raises, rows from 0, step 1: ValueError: broken"):
        played(ParallelSource(Raises))
