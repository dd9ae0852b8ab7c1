"""Configuration, plans, parameters, batching, episodes, logs: the pure parts of the system."""

import json
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import view_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.collect.inference.batching import Request, compiled_sizes, group_requests
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.config.changes import with_options
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import differences, from_json, to_json
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.metrics.episodes import EpisodeTracker


def test_a_configuration_survives_json():
    config = NetworkConfig(hidden_sizes=(3, 5))
    assert from_json(NetworkConfig, json.loads(json.dumps(to_json(config)))) == config
    with pytest.raises(UserError, match="RunConfig has no field colour"):
        from_json(RunConfig, {"colour": 1})


def test_differences_are_listed_by_path():
    assert differences({"a": {"b": 1, "c": [2]}}, {"a": {"b": 2, "c": [2]}}) == ["a.b: 1 -> 2"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("run.num_envs", 0), ("run.seed", -1), ("run.name", "a/b"), ("run.rollout_length", 0), ("learner.num_devices", 0)],
)
def test_options_out_of_range_are_rejected(option, value):
    with pytest.raises(UserError, match=f"^{option} must"):
        with_options(RunConfig(), {option.removeprefix("run."): value})


def test_updates_cover_the_env_steps():
    config = RunConfig(num_envs=10, rollout_length=10, total_env_steps=101)
    assert (config.env_steps_per_update, config.num_updates) == (100, 2)


@pytest.mark.parametrize("lag", [0, 1])
def test_at_lag_0_and_1_exactly_one_version_may_act(lag):
    store = ParamsStore(lag)
    assert store.acting(0, 0.0) is None
    for version in range(5):
        store.publish(version, f"params {version}")
        for sequence in range(version + lag + 2):
            expected = max(0, sequence - lag)
            acting = store.acting(sequence, 0.0)
            if expected > version or expected < version - lag:
                assert acting is None
            else:
                assert acting == (expected, f"params {expected}")


def test_a_dropped_sequence_does_not_count_in_the_lag():
    store = ParamsStore(2)
    store.publish(4, "four")
    assert store.acting(7, 0.0) is None
    store.drop_sequence()
    assert store.acting(7, 0.0) == (4, "four")
    assert store.acting(8, 0.0) is None


def test_at_larger_lags_the_newest_acts_within_the_bound():
    store = ParamsStore(3)
    store.publish(4, "four")
    assert store.acting(7, 0.0) == (4, "four")
    assert store.acting(8, 0.0) is None
    threading.Timer(0.05, lambda: store.publish(5, "five")).start()
    assert store.acting(8, 5.0) == (5, "five")


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.data())
def test_every_ready_lane_is_served_once_in_a_compiled_size(num_lanes, data):
    lanes = data.draw(st.lists(st.integers(0, num_lanes - 1), unique=True))
    steps = data.draw(st.lists(st.integers(0, 3), min_size=len(lanes), max_size=len(lanes)))
    requests = [Request(lane, step) for lane, step in zip(lanes, steps, strict=True)]
    for merge in (False, True):
        groups = group_requests(requests, num_lanes, merge)
        served = [request for group in groups for request in group.requests]
        assert sorted(served, key=lambda r: r.lane) == sorted(requests, key=lambda r: r.lane)
        for group in groups:
            assert group.padded_lanes in compiled_sizes(num_lanes)
            assert group.padded_lanes >= len(group.requests)
            if group.contiguous:
                first = group.requests[0]
                assert group.padded_lanes == len(group.requests)
                assert [(r.lane, r.step) for r in group.requests] == [
                    (first.lane + i, first.step) for i in range(len(group.requests))
                ]


LOG_SPEC = EnvSpec("e", ArraySpec((1,), "float32"), DiscreteSpec(5))


def random_slots(count, steps=6, rows=3, seed=0):
    """Slots of a legal random run, and the same run as one long array a field."""
    layout = make_layout(LOG_SPEC, PoolShape(1, 1, 1, rows, steps, count), {})
    slots = view_slots(layout, memoryview(bytearray(layout.total_bytes)))
    rng = np.random.default_rng(seed)
    ended = np.zeros(rows, bool)
    for slot in slots:
        for t in range(steps):
            slot.action[t], slot.valid[t] = rng.integers(0, 5, rows), ~ended
            slot.is_first[t + 1] = ended
            slot.reward[t] = rng.normal(size=rows) * ~ended
            slot.terminated[t] = (rng.random(rows) < 0.1) & ~ended
            slot.truncated[t] = (rng.random(rows) < 0.1) & ~ended
            ended = slot.terminated[t] | slot.truncated[t]
    names = ("action", "valid", "reward", "terminated", "truncated")
    return slots, {name: np.concatenate([getattr(slot, name) for slot in slots]) for name in names}


def test_episode_returns_are_sums_and_survive_saving():
    slots, run = random_slots(12)
    expected, lengths = [], []
    sums, counts = np.zeros(3), np.zeros(3, int)
    for t in range(len(run["reward"])):
        for row in range(3):
            sums[row] += run["reward"][t, row]
            counts[row] += run["valid"][t, row]
            if run["terminated"][t, row] or run["truncated"][t, row]:
                expected.append(sums[row])
                lengths.append(counts[row])
                sums[row], counts[row] = 0, 0
    tracker = EpisodeTracker(3)
    for slot in slots[:5]:
        tracker.observe(slot)
    again = EpisodeTracker(3)
    again.restore(tracker.to_arrays())
    for slot in slots[5:]:
        again.observe(slot)
    metrics = again.metrics()
    assert metrics["episode/count"] == len(expected) > 20
    assert metrics["episode/return_mean"] == pytest.approx(np.mean(expected[-100:]), rel=1e-5)
    assert metrics["episode/length_mean"] == pytest.approx(np.mean(lengths[-100:]))


@pytest.mark.parametrize("cut", [1, 4, 9])
def test_the_log_holds_each_rows_actions_since_its_episode_began(cut):
    slots, run = random_slots(12, seed=1)
    log = EpisodeLog(3, 0, LOG_SPEC)
    for slot in slots[:cut]:
        log.observe(slot)
    restored = EpisodeLog(3, cut * 6, LOG_SPEC)
    reset = restored.restore(log.to_arrays())
    for once, steps in ((reset, cut * 6),):
        for row in range(3):
            resets = np.flatnonzero(~run["valid"][:steps, row])
            begin = resets[-1] + 1 if len(resets) else 0
            assert once.episodes[row] == len(resets)
            expected = run["action"][begin:steps, row]
            if len(expected):
                np.testing.assert_array_equal(once.actions[row], expected)
            else:
                assert once.actions[row] is None
    for slot in slots[cut:]:
        log.observe(slot)
        restored.observe(slot)
    for name, values in log.to_arrays().items():
        np.testing.assert_array_equal(restored.to_arrays()[name], values)


def test_an_episode_that_is_too_long_begins_anew_on_resume():
    slots, _ = random_slots(4, seed=2)
    for slot in slots:
        slot.valid[...], slot.is_first[...] = True, False
    log = EpisodeLog(3, 0, LOG_SPEC, max_steps=12)
    for slot in slots:
        log.observe(slot)
    reset = EpisodeLog(3, 24, LOG_SPEC).restore(log.to_arrays())
    assert reset.episodes == (1, 1, 1)
    assert reset.actions == (None, None, None)


def test_evaluation_plays_the_requested_episodes_and_repeats():
    source = EnvConfig("CartPole-v1").source()
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(4,)))
    import jax

    params = agent.init(jax.random.key(0)).params
    first = evaluate(agent, params, source, episodes=7, seed=3, max_rows=3, mode=Mode.SAMPLE)
    assert len(first.returns) == 7
    assert first.returns == tuple(float(length) for length in first.lengths)  # CartPole pays 1 a step
    assert evaluate(agent, params, source, episodes=7, seed=3, max_rows=3, mode=Mode.SAMPLE) == first
    assert evaluate(agent, params, source, episodes=7, seed=4, max_rows=3, mode=Mode.SAMPLE) != first
    with pytest.raises(UserError, match="episodes must be at least 1"):
        evaluate(agent, params, source, episodes=0)


def test_a_locked_run_directory_names_its_holder(tmp_path):
    with RunDirectory(tmp_path / "run"), pytest.raises(UserError, match=r"in use by process \d+ on "):
        RunDirectory(tmp_path / "run")
    RunDirectory(tmp_path / "run").close()


def test_only_harmless_settings_may_change_when_a_run_goes_on(tmp_path):
    def config(**run):
        return {"agent_name": "ppo", "experiment": {"run": {"env_steps": 1, "seed": 0, **run}}}

    with RunDirectory(tmp_path / "run") as directory:
        directory.record(config(), {})
        directory.validate(config(total_env_steps=2))
        with pytest.raises(UserError, match="run.seed: 0 -> 1"):
            directory.validate(config(seed=1))


def test_first_thread_error_is_raised_in_the_main_thread():
    lifecycle = Lifecycle()

    def fails():
        raise RuntimeError("first")

    lifecycle.start_thread("fails", fails)

    def waits():
        while not lifecycle.should_stop():
            time.sleep(0.001)

    lifecycle.start_thread("waits", waits)
    lifecycle.join(60.0)
    assert lifecycle.should_stop()
    with pytest.raises(RuntimeError, match="first"):
        lifecycle.raise_error()
