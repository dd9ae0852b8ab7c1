"""Episodes: timing, ends, seeds, and what they tell."""

import numpy as np
import pytest

pytest.importorskip("mujoco")

from envpool_bridge.envs.hide_and_seek.env import HideAndSeek
from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from envpool_bridge.envs.hide_and_seek.scene import SUBSTEP_SECONDS, SUBSTEPS
from envpool_bridge.envs.parallel_env import ParallelEnv
from tests.support.arena import LOCK, act, arena, center


@pytest.mark.parametrize(("game", "prep", "horizon"), [(RandomWalls, 96, 240), (Base, 32, 80)])
def test_episode_has_preparation_rewards_and_truncation(game, prep, horizon):
    env = arena([(3.0, 4.0)], [(3.0, 5.0)], game=game, prep_fraction=game().prep_fraction)
    rewards, ends = [], []
    while env.agents:
        _, reward, terminated, truncated, _ = act(env)
        rewards.append((reward["hider_0"], reward["seeker_0"]))
        ends.append(truncated["hider_0"] and truncated["seeker_0"])
        assert not any(terminated.values())
    assert (len(rewards), ends) == (horizon, [False] * (horizon - 1) + [True])
    assert rewards == [(0.0, 0.0)] * prep + [(-1.0, 1.0)] * (horizon - prep)
    assert env.episode.scene.data.time == pytest.approx(horizon * 0.075)
    assert SUBSTEPS * SUBSTEP_SECONDS == 0.075


def test_being_outside_costs_nothing_while_preparing():
    for prep_fraction, reward in ((1.0, 0.0), (0.0, -10.0)):
        env = arena([(3.0, 4.0)], [(12.5, 5.0)], walls=(), prep_fraction=prep_fraction)
        assert act(env)[1] == {"hider_0": 1.0 if reward else 0.0, "seeker_0": reward}


def test_seekers_cannot_act_while_preparing_but_can_be_pushed():
    env = arena([(1.0, 5.0)], [(5.0, 5.0)], boxes=[(5.0, 4.55)], horizon=20, prep_fraction=0.25)
    start = center(env, 1)
    for _ in range(5):
        act(env, seeker_0=(0, 0, 10, 1, 1))
        assert np.abs(center(env, 1) - start).max() < 1e-3
        assert env.episode.grips.held[1] == -1
        assert not env.episode.locks.locked.any()
    act(env, seeker_0=(0, 0, 10, 1, 1))
    assert env.episode.scene.velocity[1, 0] < -1.0
    env = arena([(1.0, 5.0)], [(1.5, 5.0)], prep_fraction=1.0)
    act(env, 6, hider_0=(10, 5, 5, 0, 0))
    assert center(env, 1)[0] > 2.0


@pytest.mark.parametrize("game", [Base, RandomWalls])
def test_seed_and_actions_determine_an_episode_exactly(game):
    def played(env, seed, salt=0):
        rng = np.random.default_rng(salt)
        shown, _ = env.reset(seed=seed)
        trace = [shown]
        for _ in range(25):
            actions = {name: (*rng.integers(0, 11, 3), *rng.integers(0, 2, 2)) for name in env.agents}
            trace.append(act(env, **actions)[0])
        return np.concatenate([value.ravel() for seen in trace for one in seen.values() for value in one.values()])

    env = HideAndSeek(game(prep_fraction=0.1))
    first = played(env, 11)
    assert not np.array_equal(first[:200], played(env, 12)[:200])
    assert np.array_equal(first, played(env, 11))  # whatever was played before
    assert np.array_equal(first, played(HideAndSeek(game(prep_fraction=0.1)), 11))


def test_without_a_seed_the_next_episode_is_another():
    env = HideAndSeek(Base())
    one, _ = env.reset(seed=0)
    two, _ = env.reset()
    assert not np.array_equal(one["hider_0"]["observation_self"], two["hider_0"]["observation_self"])


def test_last_infos_hold_episode_stats():
    env = arena(
        [(3.0, 3.42)], [(1.0, 1.0)], boxes=[(3.0, 3.0), (5.0, 5.0)], ramps=[(1.0, 5.0)], horizon=20, prep_fraction=0.5
    )
    act(env, 3, hider_0=LOCK)
    act(env, 9, hider_0=(5, 5, 5, 0, 1))
    env.episode.locks.update(np.array([False, False]), np.ones((2, 3), bool), np.zeros((2, 3)))  # lets go
    *_, infos = act(env, 5, hider_0=(5, 0, 5, 0, 0))
    assert infos == {"hider_0": {}, "seeker_0": {}}  # only the last
    scene = env.episode.scene
    *_, infos = act(env, 3, hider_0=(5, 0, 5, 0, 0))
    stats = infos["hider_0"]
    assert stats == infos["seeker_0"]
    moved = np.linalg.norm(scene.position[2:, :3] - [[2.75, 2.75, 0], [4.75, 4.75, 0], [0.75, 4.75, 0]], axis=1)
    assert stats["max_box_move"] == pytest.approx(moved[0], abs=1e-6)
    assert moved[0] > 0.3
    assert stats["max_ramp_move"] == pytest.approx(moved[2], abs=1e-6)
    assert stats["max_box_move_prep"] < 0.01
    assert stats["max_ramp_move_prep"] < 0.01
    assert (stats["num_box_lock_prep"], stats["num_ramp_lock_prep"], stats["num_box_lock"]) == (1.0, 0.0, 0.0)
    assert stats["hider_return"] == -stats["seeker_return"] == 10.0
    assert (stats["seen_fraction"], stats["discard_episode"]) == (0.0, 0.0)


def test_seen_fraction_counts_rewarded_steps_alone():
    env = arena([(3.0, 4.0)], [(3.0, 5.0)], horizon=10, prep_fraction=0.5)
    act(env, 7)
    *_, infos = act(env, 3, seeker_0=(5, 5, 10, 0, 0))  # turns away
    seen = infos["hider_0"]["seen_fraction"] * 5
    assert 2 <= round(seen) <= 4
    assert infos["hider_0"]["hider_return"] == pytest.approx(5 - 2 * seen)


def test_drawn_team_sizes_leave_agents_out_of_an_episode():
    env = HideAndSeek(Base(2, 2, random_team_sizes=True))
    seen = set()
    for seed in range(12):
        observations, _ = env.reset(seed=seed)
        assert list(observations) == env.agents
        assert env.agents[0] == "hider_0"
        assert "seeker_0" in env.agents
        seen.add(tuple(env.agents))
        assert list(act(env)[1]) == env.agents
    assert len(seen) == 4
    assert env.possible_agents == ["hider_0", "hider_1", "seeker_0", "seeker_1"]


def test_it_keeps_the_parallel_protocol_and_pettingzoos_own_test():
    assert isinstance(HideAndSeek(Base()), ParallelEnv)
    tests = pytest.importorskip("pettingzoo.test")
    tests.parallel_api_test(HideAndSeek(Base(1, 2, horizon=12)), num_cycles=40)


def test_nothing_can_be_asked_before_the_first_reset():
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        HideAndSeek(Base()).state()
