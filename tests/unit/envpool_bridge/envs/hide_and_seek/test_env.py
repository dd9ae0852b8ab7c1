"""Episodes: timing, ends, seeds, and what they tell."""

import numpy as np
import pytest

from envpool_bridge.envs.hide_and_seek.game import Base, RandomWalls
from envpool_bridge.envs.parallel_env import ParallelEnv
from tests.support.arena import ENGINES, LOCK, act, arena, center, held, locked, make_game, velocity

pytestmark = pytest.mark.parametrize("engine", ENGINES)


@pytest.mark.parametrize(("game", "prep", "horizon"), [(RandomWalls, 96, 240), (Base, 32, 80)])
def test_episode_has_preparation_rewards_and_truncation(engine, game, prep, horizon):
    env = arena([(3.0, 4.0)], [(3.0, 5.0)], game=game, prep_fraction=game().prep_fraction, engine=engine)
    rewards, ends = [], []
    while env.agents:
        _, reward, terminated, truncated, _ = act(env)
        rewards.append((reward["hider_0"], reward["seeker_0"]))
        ends.append(truncated["hider_0"] and truncated["seeker_0"])
        assert not any(terminated.values())
    assert (len(rewards), ends) == (horizon, [False] * (horizon - 1) + [True])
    assert rewards == [(0.0, 0.0)] * prep + [(-1.0, 1.0)] * (horizon - prep)


def test_being_outside_costs_nothing_while_preparing(engine):
    for prep_fraction, reward in ((1.0, 0.0), (0.0, -10.0)):
        env = arena([(3.0, 4.0)], [(12.5, 5.0)], walls=(), prep_fraction=prep_fraction, engine=engine)
        assert act(env)[1] == {"hider_0": 1.0 if reward else 0.0, "seeker_0": reward}


def test_seekers_cannot_act_while_preparing_but_can_be_pushed(engine):
    env = arena([(1.0, 5.0)], [(5.0, 5.0)], boxes=[(5.0, 4.55)], horizon=20, prep_fraction=0.25, engine=engine)
    start = center(env, 1)
    for _ in range(5):
        act(env, seeker_0=(0, 0, 10, 1, 1))
        assert np.abs(center(env, 1) - start).max() < 1e-3
        assert held(env)[1] == -1
        assert locked(env) == [False]
    act(env, seeker_0=(0, 5, 5, 0, 0))
    assert velocity(env, 1)[0] < -1.0
    env = arena([(1.0, 5.0)], [(1.5, 5.0)], prep_fraction=1.0, engine=engine)
    act(env, 6, hider_0=(10, 5, 5, 0, 0))
    assert center(env, 1)[0] > 2.0


@pytest.mark.parametrize("game", [Base, RandomWalls])
def test_seed_and_actions_determine_an_episode_exactly(engine, game):
    def played(env, seed, salt=0):
        rng = np.random.default_rng(salt)
        shown, _ = env.reset(seed=seed)
        trace = [shown]
        for _ in range(25):
            actions = {name: (*rng.integers(0, 11, 3), *rng.integers(0, 2, 2)) for name in env.agents}
            trace.append(act(env, **actions)[0])
        return np.concatenate([value.ravel() for seen in trace for one in seen.values() for value in one.values()])

    env = make_game(game(prep_fraction=0.1), engine)
    first = played(env, 11)
    assert not np.array_equal(first[:200], played(env, 12)[:200])
    assert np.array_equal(first, played(env, 11))  # whatever was played before
    assert np.array_equal(first, played(make_game(game(prep_fraction=0.1), engine), 11))


def test_without_a_seed_the_next_episode_is_another(engine):
    env = make_game(Base(), engine)
    one, _ = env.reset(seed=0)
    two, _ = env.reset()
    assert not np.array_equal(one["hider_0"]["observation_self"], two["hider_0"]["observation_self"])


def test_last_infos_hold_episode_stats(engine):
    env = arena(
        [(3.0, 3.42)],
        [(1.0, 1.0)],
        boxes=[(3.0, 3.0), (5.0, 5.0)],
        ramps=[(1.0, 5.0)],
        horizon=20,
        prep_fraction=0.5,
        engine=engine,
    )
    act(env, 3, hider_0=LOCK)
    act(env, 9, hider_0=(5, 5, 5, 0, 1))
    *_, infos = act(env, 5, hider_0=(5, 0, 5, 0, 0))  # lets go
    assert infos == {"hider_0": {}, "seeker_0": {}}  # only the last
    *_, infos = act(env, 3, hider_0=(5, 0, 5, 0, 0))
    stats = infos["hider_0"]
    assert stats == infos["seeker_0"]
    starts = [[3.0, 3.0, 0.25], [5.0, 5.0, 0.25], [1.0, 5.0, 0.25]]
    moved = [np.linalg.norm(center(env, 2 + place) - start) for place, start in enumerate(starts)]
    assert stats["max_box_move"] == pytest.approx(moved[0], abs=1e-6)
    assert moved[0] > 0.3
    assert stats["max_ramp_move"] == pytest.approx(moved[2], abs=1e-6)
    assert stats["max_box_move_prep"] < 0.01
    assert stats["max_ramp_move_prep"] < 0.01
    assert (stats["num_box_lock_prep"], stats["num_ramp_lock_prep"], stats["num_box_lock"]) == (1.0, 0.0, 0.0)
    assert stats["hider_return"] == -stats["seeker_return"] == 10.0
    assert (stats["seen_fraction"], stats["discard_episode"]) == (0.0, 0.0)


def test_seen_fraction_counts_rewarded_steps_alone(engine):
    env = arena([(3.0, 4.0)], [(3.0, 5.0)], horizon=10, prep_fraction=0.5, engine=engine)
    act(env, 7)
    *_, infos = act(env, 3, seeker_0=(5, 5, 10, 0, 0))  # turns away
    seen = infos["hider_0"]["seen_fraction"] * 5
    assert 2 <= round(seen) <= 4
    assert infos["hider_0"]["hider_return"] == pytest.approx(5 - 2 * seen)


def test_drawn_team_sizes_leave_agents_out_of_an_episode(engine):
    env = make_game(Base(2, 2, random_team_sizes=True), engine)
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


def test_it_keeps_the_parallel_protocol_and_pettingzoos_own_test(engine):
    assert isinstance(make_game(Base(), engine), ParallelEnv)
    tests = pytest.importorskip("pettingzoo.test")
    tests.parallel_api_test(make_game(Base(1, 2, horizon=12), engine), num_cycles=40)


def test_nothing_can_be_asked_before_the_first_reset(engine):
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        make_game(Base(), engine).state()
