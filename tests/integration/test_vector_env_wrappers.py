"""Gymnasium's vector wrappers around PoolVectorEnv, and the factory that corresponds to `gymnasium.make_vec`."""

import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector as vector_wrappers

from envpool_bridge.errors import UserError
from envpool_bridge.vector_env import PoolVectorEnv, make_vec
from tests.integration.test_vector_env_interface import Counter, counters

WRAPPERS = {
    "RecordEpisodeStatistics": vector_wrappers.RecordEpisodeStatistics,
    "NormalizeObservation": vector_wrappers.NormalizeObservation,
    "NormalizeReward": vector_wrappers.NormalizeReward,
    "ClipReward": partial(vector_wrappers.ClipReward, min_reward=0.0, max_reward=0.5),
    "FlattenObservation": vector_wrappers.FlattenObservation,
    "DictInfoToList": vector_wrappers.DictInfoToList,
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_vector_wrappers_equal_those_of_sync_vector_env(name):
    pool = PoolVectorEnv(counters(), num_workers=2, timeout_seconds=30.0)
    try:
        assert_equal_steps(WRAPPERS[name](pool), WRAPPERS[name](SyncVectorEnv(counters())))
    finally:
        pool.close()


def assert_equal_steps(ours, theirs):
    rng = np.random.default_rng(1)
    ours.reset(seed=2)
    theirs.reset(seed=2)
    for _ in range(12):
        actions = rng.integers(0, 2, 4)
        mine, other = ours.step(actions), theirs.step(actions)
        for values in (mine[4], other[4]):
            if isinstance(values, dict) and "episode" in values:
                del values["episode"]["t"]  # seconds
        assert data_equivalence(mine, other)


def test_make_vec_equals_gymnasiums():
    arguments = {"max_episode_steps": 6, "render_mode": "rgb_array"}
    wrap = partial(gymnasium.wrappers.RescaleObservation, min_obs=np.float32(-1), max_obs=np.float32(1))
    ours = make_vec("Pendulum-v1", 2, vector_kwargs={"autoreset_mode": "SameStep"}, wrappers=[wrap], **arguments)
    theirs = gymnasium.make_vec("Pendulum-v1", 2, "sync", {"autoreset_mode": "SameStep"}, wrappers=[wrap], **arguments)
    try:
        assert ours.observation_space == theirs.observation_space
        assert ours.spec.id == "Pendulum-v1"
        assert ours.render_mode == "rgb_array"
        ours.reset(seed=4)
        theirs.reset(seed=4)
        for _ in range(8):
            actions = theirs.action_space.sample()
            assert data_equivalence(ours.step(actions), theirs.step(actions))
    finally:
        ours.close()
        theirs.close()


def test_make_vec_accepts_ids_that_workers_never_register(monkeypatch):
    registration = EnvSpec("Mine/Counter-v0", lambda **options: Counter(**options))
    monkeypatch.setitem(gymnasium.registry, "Mine/Counter-v0", registration)
    with pytest.raises(UserError, match=r"'Mine/Countr-v0'.*did you mean Mine/Counter-v0"):
        make_vec("Mine/Countr-v0", 2)
    with pytest.warns(UserWarning, match=r"Mine/Counter has no version: Mine/Counter-v0 is used"):
        make_vec("Mine/Counter", 2).close()
    for id_or_registration in ("Mine/Counter-v0", registration):
        env = make_vec(id_or_registration, 2, start=7)
        try:
            assert env.reset()[0].tolist() == [[7.0, 0.0]] * 2
        finally:
            env.close()


@pytest.mark.parametrize("is_given", [False, True])
def test_make_vec_accepts_environments_of_the_script_by_name(monkeypatch, is_given):
    registration = EnvSpec("Mine/Counter-v0", "__main__:OfScript")
    monkeypatch.setitem(gymnasium.registry, "Mine/Counter-v0", registration)
    monkeypatch.setattr(sys.modules["__main__"], "OfScript", Counter, raising=False)
    env = make_vec(registration if is_given else "Mine/Counter-v0", 2, start=7)
    try:
        assert env.reset()[0].tolist() == [[7.0, 0.0]] * 2
    finally:
        env.close()


@pytest.mark.parametrize("mode", [None, "sync", "async", VectorizeMode.ASYNC])
def test_make_vec_takes_gymnasiums_arguments_in_their_order(mode):
    env = make_vec("CartPole-v1", 2, mode, {"num_workers": 1}, None, max_episode_steps=3)
    try:
        assert isinstance(env, PoolVectorEnv)
        assert env.get_attr("_max_episode_steps") == (3, 3)
    finally:
        env.close()


@pytest.mark.parametrize("mode", ["vector_entry_point", VectorizeMode.VECTOR_ENTRY_POINT, "threads"])
def test_make_vec_rejects_modes_that_are_no_pool(mode):
    with pytest.raises(UserError, match="vectorization_mode must be None, 'sync' or 'async'"):
        make_vec("CartPole-v1", 2, mode)


def test_record_video_writes_the_frames_of_all_rows(tmp_path):
    pytest.importorskip("moviepy")
    make_env = partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
    pool = PoolVectorEnv(make_env, 2, timeout_seconds=30.0)
    videos = tmp_path / "videos"
    try:
        env = vector_wrappers.RecordVideo(pool, str(videos), step_trigger=lambda step: step == 0, video_length=5)
        env.reset(seed=0)
        for _ in range(8):
            env.step(np.zeros(2, int))
        env.close()
    finally:
        pool.close()
    assert [path.stat().st_size > 0 for path in videos.glob("*.mp4")] == [True]
