"""Parameters by version, and the server that acts with them: who acts with what, and what is written where."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Agent, OnPolicy
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import SlotAccess, view_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.collect.inference.act import fetch, row_keys
from jaxsrl.collect.inference.batching import Group, Request, compiled_sizes, group_requests
from jaxsrl.collect.inference.server import InferenceServer
from jaxsrl.collect.params.store import ParamsStore

SHAPE = PoolShape(num_workers=1, lanes_per_worker=4, workers_per_lane=1, rows_per_part=3, rollout_length=5, num_slots=3)
KEYS = row_keys(jax.random.key(0), range(SHAPE.num_rows))


def test_of_each_lag_only_as_many_versions_are_kept_as_can_act():
    for lag in (0, 1, 4):
        store = ParamsStore(lag)
        for version in range(20):
            store.publish(version, object())
            assert len(store._versions) <= lag + 1


@pytest.mark.parametrize("lag", [2, 3, 8])
def test_from_lag_2_on_who_acts_is_the_newest_and_never_too_old(lag):
    store = ParamsStore(lag)
    for newest in range(12):
        store.publish(newest, f"params {newest}")
        for sequence in range(newest + lag + 3):
            allowed = newest >= sequence - lag
            assert store.may_act(sequence) is allowed
            assert store.acting(sequence, 0.0) == ((newest, f"params {newest}") if allowed else None)


def test_the_learner_publishes_while_readers_wait():
    store, got = ParamsStore(1), []
    readers = [threading.Thread(target=lambda: got.append(store.acting(3, 60.0))) for _ in range(4)]
    for reader in readers:
        reader.start()
    for version in range(3):
        store.publish(version, version)
    for reader in readers:
        reader.join()
    assert got == [(2, 2)] * 4


def test_waiting_for_parameters_ends_with_the_time_it_was_given():
    start = time.monotonic()
    assert ParamsStore(0).acting(5, 0.02) is None
    assert time.monotonic() - start >= 0.02


@pytest.mark.parametrize(
    ("num_lanes", "sizes"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (9, [1, 2, 4, 8, 9])]
)
def test_calls_are_compiled_for_few_sizes(num_lanes, sizes):
    assert compiled_sizes(num_lanes) == sizes


def test_ready_lanes_share_one_call_only_where_asked():
    requests = [Request(2, 7), Request(0, 7), Request(1, 7)]
    assert group_requests(requests, 3, merge=True) == [Group((Request(0, 7), Request(1, 7), Request(2, 7)), True, 3)]
    assert group_requests(requests, 3, merge=False) == [Group((Request(lane, 7),), True, 1) for lane in range(3)]


@pytest.mark.parametrize(
    ("requests", "in_place", "padded"),
    [
        ([Request(1, 7), Request(2, 7)], True, 2),
        ([Request(0, 7), Request(2, 7)], False, 2),  # a gap
        ([Request(0, 7), Request(1, 8)], False, 2),  # at different steps
        ([Request(0, 7), Request(1, 7), Request(2, 7)], False, 4),  # no call of this size is compiled
        ([Request(3, 1)], True, 1),
    ],
)
def test_only_contiguous_rows_are_read_in_place(requests, in_place, padded):
    assert group_requests(requests, 6, merge=True) == [Group(tuple(requests), in_place, padded)]


def adding_agent():
    """Acts observation + 10 x parameter + a random 0 or 100; notes the observation it saw."""

    def act(params, observation, agent_state, is_first, keys, mode):
        luck = jax.vmap(lambda key: jax.random.randint(key, (), 0, 2))(keys)
        action = observation[:, 0].astype(jnp.int32) + 10 * params + 100 * luck
        return action, {"seen": observation[:, 0]}, agent_state

    extras = {"seen": ArraySpec((), "float32")}
    return Agent("adding", None, lambda num_rows: (), act, None, extras, OnPolicy())


class FakePool:
    """Slots without processes; lanes are wherever the test puts them."""

    def __init__(self, positions):
        spec = EnvSpec("e", ArraySpec((1,), "float32"), DiscreteSpec(1000))
        layout = make_layout(spec, SHAPE, adding_agent().extras)
        self.shape, self.num_lanes, self.num_rows = SHAPE, SHAPE.num_lanes, SHAPE.num_rows
        self.views = view_slots(layout, memoryview(bytearray(layout.total_bytes)))
        self.spec, self.access = spec, SlotAccess(layout)
        self.positions, self.posted = positions, []
        for number, slot in enumerate(self.views):
            slot.action[...], slot.policy_version[...] = -1, -1
            slot.observation[...] = np.arange(slot.observation.size).reshape(slot.observation.shape) + 1000 * number

    def position(self, lane):
        return self.positions[lane]

    def post_actions(self, lane):
        self.posted.append(lane)


def served(positions, lanes, lag, versions, merge):
    pool, store = FakePool(positions), ParamsStore(lag)
    for version in versions:
        store.publish(version, jnp.int32(version))
    server = InferenceServer(pool, adding_agent(), store, KEYS, jax.devices()[0], merge)
    server._serve(lanes)
    return pool, server.stats


def written(pool):
    """{(lane, sequence, t): (actions, versions)} of everything that was written."""
    found = {}
    for number, slot in enumerate(pool.views):
        for t in range(SHAPE.rollout_length):
            for lane in range(SHAPE.num_lanes):
                rows = SHAPE.lane_rows(lane)
                if (slot.policy_version[t, rows] >= 0).any():
                    found[lane, number, t] = (slot.action[t, rows].tolist(), slot.policy_version[t, rows].tolist())
                    np.testing.assert_array_equal(slot.extras["seen"][t, rows], slot.observation[t, rows, 0])
                else:
                    assert (slot.action[t, rows] == -1).all()
    return found


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("lanes", [[0], [3], [1, 2], [0, 3], [0, 1, 2], [0, 1, 2, 3]])
def test_server_acts_for_exactly_the_ready_lanes(lanes, merge):
    pool, stats = served([(2, 3)] * 4, lanes, lag=1, versions=[0, 1], merge=merge)
    assert sorted(pool.posted) == lanes
    assert set(written(pool)) == {(lane, 2, 3) for lane in lanes}
    for lane in lanes:
        rows = SHAPE.lane_rows(lane)
        assert (pool.views[2].policy_version[3, rows] == 1).all()
        luck = pool.views[2].action[3, rows] - pool.views[2].observation[3, rows, 0].astype(int) - 10
        assert set(luck.tolist()) <= {0, 100}
    assert (stats.calls, stats.rows) == (1 if merge else len(lanes), 3 * len(lanes))


def test_merged_calls_give_the_actions_of_single_ones():
    positions = [(1, 4), (2, 0), (2, 0), (1, 4)]
    single = written(served(positions, [0, 1, 2, 3], lag=2, versions=[0, 1], merge=False)[0])
    merged = written(served(positions, [0, 1, 2, 3], lag=2, versions=[0, 1], merge=True)[0])
    assert single == merged
    assert len({actions[0] % 100 for actions, _ in single.values()}) == 4


@pytest.mark.parametrize("merge", [False, True])
def test_lanes_in_different_slots_use_their_own_versions(merge):
    # Slot 1 of update 0 has been learned from, so lane 1 is already in slot 2 while lane 0 is at the end of slot 1.
    pool, stats = served([(1, 4), (2, 0), (2, 0), (1, 4)], [0, 1, 2, 3], lag=1, versions=[0, 1], merge=merge)
    versions = {place: versions for place, (_, versions) in written(pool).items()}
    assert versions == {(0, 1, 4): [0] * 3, (3, 1, 4): [0] * 3, (1, 2, 0): [1] * 3, (2, 2, 0): [1] * 3}
    assert stats.calls == (2 if merge else 4)


@pytest.mark.parametrize("merge", [False, True])
def test_steps_of_the_run_wrap_around_at_32_bits(merge):
    sequence = 2**32 // SHAPE.rollout_length  # its second step is step 2^32 of the run
    positions = [(sequence, 0), (sequence, 1), (sequence, 3), (sequence, 3)]
    for lanes in ([0, 1, 2], [2, 3]):
        pool, _ = served(positions, lanes, lag=0, versions=[sequence], merge=merge)
        slot = pool.views[sequence % SHAPE.num_slots]
        for lane in lanes:
            t, rows = positions[lane][1], SHAPE.lane_rows(lane)
            step = np.full(3, (sequence * SHAPE.rollout_length + t) % 2**32, np.uint32)
            keys = jax.vmap(jax.random.fold_in)(KEYS[rows], step)
            expected, _, _ = adding_agent().act(jnp.int32(sequence), slot.observation[t, rows], (), None, keys, None)
            np.testing.assert_array_equal(slot.action[t, rows], expected)


def test_merging_lanes_of_an_agent_with_memory_is_refused():
    agent = adding_agent()._replace(initial_agent_state=lambda num_rows: jnp.zeros((num_rows, 2)))
    with pytest.raises(UserError, match="agent adding carries state between steps: use --inference.batching lane"):
        InferenceServer(FakePool([]), agent, ParamsStore(0), KEYS, jax.devices()[0], merge=True)


def test_each_lane_keeps_its_own_memory():
    def act(params, observation, agent_state, is_first, keys, mode):
        return agent_state.astype(jnp.int32), {"seen": observation[:, 0]}, agent_state + 1

    agent = adding_agent()._replace(act=act, initial_agent_state=lambda num_rows: jnp.zeros(num_rows))
    pool, store = FakePool([(0, 0)] * 4), ParamsStore(0)
    store.publish(0, jnp.int32(0))
    server = InferenceServer(pool, agent, store, KEYS, jax.devices()[0], merge=False)
    for t, lanes in enumerate(([0, 1], [1], [0, 1])):
        pool.positions = [(0, t)] * 4
        server._serve(lanes)
    first, second = (pool.views[0].action[:3, SHAPE.lane_rows(lane).start].tolist() for lane in (0, 1))
    assert (first, second) == ([0, -1, 1], [0, 1, 2])


def test_server_waits_for_parameters_and_stops_on_request():
    pool, store = FakePool([(0, 0), (1, 0), (0, 0), (0, 0)]), ParamsStore(0)
    store.publish(0, jnp.int32(0))
    waits = []

    def wait_ready(timeout_seconds, may_act):
        waits.append(timeout_seconds)
        ready = [lane for lane in range(4) if lane not in pool.posted and may_act(pool.position(lane)[0])]
        return ready if len(waits) == 1 else []

    pool.wait_ready = wait_ready
    server = InferenceServer(pool, adding_agent(), store, KEYS, jax.devices()[0], merge=True)
    server.run(lambda: len(waits) == 3)
    assert sorted(pool.posted) == [0, 2, 3]
    assert (server.stats.calls, server.stats.rows) == (1, 9)
    assert server.stats.busy_seconds > 0.0


def test_warm_server_compiles_nothing():
    pool, store = FakePool([(0, 1)] * 4), ParamsStore(0)
    store.publish(0, jnp.int32(0))
    server = InferenceServer(pool, adding_agent(), store, KEYS, jax.devices()[0], merge=True)
    server.warm_up(jnp.int32(0))
    compiled = server._act._cache_size()
    for lanes in ([0], [2, 3], [0, 2], [0, 1, 2], [0, 1, 2, 3]):
        server._serve(lanes)
    assert server._act._cache_size() == compiled == 3


def test_fetch_returns_the_arrays_in_their_structure():
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "b": (jnp.ones(2, jnp.int32), np.zeros(3, np.float32), ())}
    got, expected = fetch(tree), jax.device_get(tree)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert type(one) is np.ndarray
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert fetch(()) == ()


def test_fetch_starts_all_copies_before_waiting(monkeypatch):
    order = []

    class Elsewhere:
        def __init__(self, name):
            self.name = name

        def copy_to_host_async(self):
            order.append(f"ask {self.name}")

        def __array__(self, dtype=None, copy=None):
            order.append(f"await {self.name}")
            return np.zeros(1)

    monkeypatch.setattr("jaxsrl.machine.devices._is_elsewhere", lambda leaf: isinstance(leaf, Elsewhere))
    fetch([Elsewhere("a"), Elsewhere("b")])
    assert order == ["ask a", "ask b", "await a", "await b"]
