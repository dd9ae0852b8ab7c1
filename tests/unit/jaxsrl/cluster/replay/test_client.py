"""Experience at a node of its own is that of this process to the bit; what is on its way is bounded; what is lost is said."""

import contextlib
import dataclasses
import time
from concurrent.futures import Future
from types import SimpleNamespace

import cloudpickle
import jax
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.shm.slot_summary import SlotSummaries
from envpool_bridge.shm.slots import view_slot
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.cluster.protocol.engine import ReplayLostError
from jaxsrl.cluster.replay.client import RemoteReplayClient, RemoteReplayMesh
from jaxsrl.cluster.replay.host import ReplayHost, bytes_of_leaves
from jaxsrl.cluster.replay.setup import SampleBlocks, make_replay_setup
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.slot_layout import agent_layout, trajectory_shapes
from jaxsrl.config.parts import ReplayMemoryConfig
from jaxsrl.learner.host_replay import HostReplay, HostReplayMesh, trajectory_on_host
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.resources import Node, Resources
from jaxsrl.metrics.cluster_traffic import traffic_values
from jaxsrl.plan.passes.apply import add_agent_fragments
from jaxsrl.plan.passes.place_hosts import place_hosts
from jaxsrl.plan.passes.place_replay import SAMPLES_AHEAD, place_replay
from jaxsrl.plan.policies import PLANS
from jaxsrl.replay.client import LocalReplayClient
from tests.support.counting_agent import make_counting
from tests.support.journal import RECORD, journal_in, learner_name
from tests.support.replay_engine import ReplayEngine
from tests.support.run_configs import run_config

SPEC = EnvSpec("Frames", ArraySpec((3, 2), "float32", frames=3), DiscreteSpec(4))
HOSTS, ROWS, STEPS = 2, 8, 4
UNIFORM = ReplayConfig(capacity=160, batch_size=4, min_size=40, gradient_steps_per_env_step=0.125)
PRIORITIZED = dataclasses.replace(UNIFORM, priority_exponent=0.6)
DELAYED = dataclasses.replace(PRIORITIZED, priority_delay=2)
RUN_KEY = jax.random.key(5)
NODES = [Node("one", 4), Node("two", 4)]


def first_priority(steps):
    """[T, B] from [T + L - 1, B], with L = 2."""
    return steps.reward[:-1] % 11


def config_of(replay=UNIFORM, first_sequence=0, **options):
    run = run_config(
        num_envs=ROWS, pool_num_workers=2, pool_lanes_per_worker=1, rollout_length=STEPS, total_env_steps=1
    )
    agent = make_counting(Replay(replay, sequence_length=2, initial_priority=first_priority))
    plan = add_agent_fragments(
        PLANS["single_learner_coarse"](run, Resources(4, "cpu", 1)), agent, ReplayMemoryConfig("host")
    )
    plan = place_replay(place_hosts(plan, NODES, HOSTS), NODES)
    return CollectorConfig(None, SPEC, plan, agent, 7, first_sequence, jax.random.key(1), **options)  # pyright: ignore


def slots_of(config, updates, seed=0):
    """[HOSTS] memories of slots an update, full of anything that slots may hold."""
    random, layout = np.random.default_rng(seed), agent_layout(SPEC, config.plan.shape, config.agent)
    found = []
    for _ in range(updates):
        memories = [np.zeros(layout.slot_bytes, np.uint8) for _ in range(HOSTS)]
        for memory in memories:
            slot = view_slot(layout, memory.data)
            for array in (slot.frames, slot.reward):
                array[...] = random.integers(0, 30, array.shape)
            for array in (slot.is_first_frames, slot.terminated):
                array[...] = random.random(array.shape) < 0.2
            slot.valid[...] = random.random(slot.valid.shape) < 0.9
            slot.action[...] = random.integers(0, 4, slot.action.shape)
        found.append(memories)
    return layout, found


@contextlib.contextmanager
def remote(config):
    engine = ReplayEngine({node.name: node.num_cores for node in NODES})
    experience = RemoteReplayClient(config, engine, RUN_KEY)
    try:
        yield experience, engine
    finally:
        experience.close()
        engine.close()


def bring(experience, memories, sequence, incarnation=1):
    """As environment hosts and the learner's source do."""
    for host, memory in enumerate(memories):
        slot = Future()
        slot.host = SimpleNamespace(gone=False)
        slot.set_result((sequence, memory))
        staged, _ = experience.fetch(host, incarnation, slot).result(60.0)
        assert staged == sequence
        experience.note_slot(host, sequence, incarnation)


def updates(replay, state, batches):
    """(states, metrics) after each update; a batch is made when its turn has come."""
    found = []
    for batch in batches:
        state, metrics = replay(state, batch())
        found.append(jax.device_get((state, metrics)))
    return found


def first_state(config, devices):
    return LearnerMesh(devices).place_state(jax.jit(config.agent.init)(jax.random.key(0)))


def learn(config, experience, batches, mesh=HostReplayMesh, state=None):
    devices = jax.local_devices()[:1]
    replay = HostReplay(config.agent, mesh(devices), RUN_KEY, experience)
    return updates(replay, first_state(config, devices) if state is None else state, batches)


def learn_here(config, updates_, seed=0, saved=None, state=None, skip=0):
    """The same in this process: (what the updates came to, the experience after them)."""
    layout, slots = slots_of(config, updates_, seed)
    shapes = trajectory_shapes(config.agent, SPEC, ROWS, STEPS)
    experience = LocalReplayClient(config.agent.data, shapes)
    if saved is not None:
        experience.restore(saved)
    batches = [lambda m=m: trajectory_on_host([view_slot(layout, memory.data) for memory in m]) for m in slots[skip:]]
    found = learn(config, experience, batches, state=state)
    kept = jax.tree.map(np.array, experience.to_arrays())
    experience.close()
    return found, kept


def learn_there(config, experience, updates_, seed=0, state=None, skip=0):
    _, slots = slots_of(config, updates_, seed)
    batches = [lambda m=m, number=number: bring(experience, m, number) for number, m in list(enumerate(slots))[skip:]]
    return learn(config, experience, batches, RemoteReplayMesh, state)


def require_same(mine, theirs):
    one, other = jax.tree.leaves(mine), jax.tree.leaves(theirs)
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


@pytest.mark.parametrize("replay", [UNIFORM, PRIORITIZED, DELAYED], ids=["uniform", "prioritized", "delayed"])
def test_remote_replay_equals_local_replay_exactly(replay):
    config = config_of(replay)
    here, kept = learn_here(config, 9)
    with remote(config) as (experience, engine):
        there = learn_there(config, experience, 9)
        require_same(experience.to_arrays(), kept)
        totals = experience.totals()
        assert engine.replays[0].most_open_samples <= SAMPLES_AHEAD
    require_same(there, here)
    steps = int(sum(metrics["replay/gradient_steps"] for _, metrics in here))
    assert steps > 20
    assert totals["cluster/one/samples"] == steps
    assert (
        totals["cluster/one/replay_received_bytes"]
        == 9 * HOSTS * agent_layout(SPEC, config.plan.shape, config.agent).slot_bytes
    )


@pytest.mark.parametrize("replay", [UNIFORM, DELAYED], ids=["uniform", "delayed"])
def test_saved_replay_resumes_locally_and_remotely(replay, monkeypatch):
    monkeypatch.setattr("jaxsrl.cluster.replay.host.PART_BYTES", 1000)  # so that there are several
    monkeypatch.setattr("jaxsrl.cluster.replay.client.PART_BYTES", 1000)
    # Priorities are sent no earlier than they must be, as those of a device that still computes.
    monkeypatch.setattr("jaxsrl.cluster.replay.client._is_computed", lambda priority: False)
    config = config_of(replay)
    whole, kept_whole = learn_here(config, 8)
    begun, kept = learn_here(config, 5)
    assert sum(array.nbytes for array in bytes_of_leaves(kept)) > 2000
    later = dataclasses.replace(config, first_sequence=5)
    with remote(later) as (experience, _):
        experience.restore(kept)
        require_same(experience.to_arrays(), kept)
        require_same(learn_there(later, experience, 8, state=begun[-1][0], skip=5), whole[5:])
        require_same(experience.to_arrays(), kept_whole)
    with remote(config) as (experience, _):
        begun = learn_there(config, experience, 5)
        kept = experience.to_arrays()
    require_same(learn_here(config, 8, saved=kept, state=begun[-1][0], skip=5)[0], whole[5:])


def test_replay_inserts_the_slot_of_the_current_host_start():
    config = config_of()
    layout, slots = slots_of(config, 3)
    _, others = slots_of(config, 3, seed=1)
    with remote(config) as (experience, engine):
        experience.wait_until_started()
        replay = engine.replays[0].replay
        replay.stage(1, 1, 0, others[0][1])  # of a host that was lost before the learner knew of it
        replay.stage(1, 1, 1, others[1][1])
        bring(experience, slots[0], 0, incarnation=2)
        found = learn(config, experience, [lambda: None], RemoteReplayMesh)
        assert list(replay._staged) == [(1, 1, 1)]
        bring(experience, slots[1], 1, incarnation=2)
        learn(config, experience, [lambda: None], RemoteReplayMesh, found[-1][0])
        assert not replay._staged
        kept = experience.to_arrays()
    reward = np.concatenate([view_slot(layout, memory.data).reward for memory in slots[1]], axis=1)
    np.testing.assert_array_equal(kept.storage.reward[STEPS : 2 * STEPS], reward)


def test_what_is_inserted_is_written_down_where_it_is_inserted(tmp_path):
    config = config_of(journal=journal_in(tmp_path))
    with remote(config) as (experience, _):
        learn_there(config, experience, 3)
    for host in range(HOSTS):
        records = np.fromfile(tmp_path / learner_name(host * ROWS // HOSTS), RECORD)
        np.testing.assert_array_equal(np.unique(records["step"]), np.arange(3 * STEPS))
        assert len(records) == 3 * STEPS * config.plan.shape.num_parts


def test_priorities_that_overtake_each_other_are_taken_in_order():
    config = config_of(PRIORITIZED)
    setup, replay = make_replay_setup(config, RUN_KEY), ReplayHost()
    replay.start(cloudpickle.dumps(setup))
    taken = []
    replay._replay.update_priorities = taken.append  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    replay.give(1, np.array([[1.0], [2.0]]))
    assert taken == []
    replay.give(0, np.array([[0.0]]))
    replay.give(3, np.array([[3.0]]))
    np.testing.assert_array_equal(np.concatenate(taken), [0.0, 1.0, 2.0, 3.0])
    replay.close()


def test_samples_are_used_in_order_of_their_requests():
    config = config_of()
    here, _ = learn_here(config, 6)
    with remote(config) as (experience, engine):
        in_order = engine.wait
        engine.wait = lambda calls, seconds: in_order(calls[::-1], seconds)
        require_same(learn_there(config, experience, 6), here)


def test_lost_or_silent_replay_ends_the_run_with_a_remedy():
    config = config_of()
    with remote(config) as (experience, engine):
        learn_there(config, experience, 2)
        engine.replays[0].kill()
        with pytest.raises(
            ReplayLostError, match="replay on node one is lost .* the same command resumes from the newest"
        ):
            experience.sample()
    silent = config_of(supervision=SupervisorOptions(step_timeout_seconds=0.02, start_timeout_seconds=60.0))
    with remote(silent) as (experience, engine):
        experience.wait_until_started()
        engine.replays[0].silent = True
        experience._ask()
        with pytest.raises(
            ReplayLostError, match=r"it did not answer for 0.02 s: step_timeout_seconds of --pool.supervision"
        ):
            experience.sample()
        experience.poll()
        time.sleep(0.05)
        with pytest.raises(ReplayLostError, match=r"replay on node one is lost .*step_timeout_seconds"):
            experience.poll()
        assert engine.replays[0].gone


def test_learner_receives_only_the_summary_of_a_slot():
    config = config_of()
    layout, ((memory, _),) = slots_of(config, 1)
    summaries = SlotSummaries(layout)
    block = summaries.pack(memory)
    assert block.nbytes == summaries.num_bytes < layout.slot_bytes
    told, slot = summaries.view(block), view_slot(layout, memory.data)
    for name in (
        "is_first",
        "is_first_frames",
        "action",
        "reward",
        "terminated",
        "truncated",
        "valid",
        "policy_version",
    ):
        np.testing.assert_array_equal(getattr(told, name), getattr(slot, name))
    np.testing.assert_array_equal(told.observation[-1], slot.observation[-1])
    np.testing.assert_array_equal(told.frames[:-1], 0)
    assert slot.frames[:-1].any()


def test_slot_boundary_observations_are_sent_on_request():
    config = config_of()
    layout, slots = slots_of(config, 2)
    with remote(config) as (experience, _):
        bring(experience, slots[0], 0)
        bring(experience, slots[1], 1)
        learn(config, experience, [lambda: None], RemoteReplayMesh)  # the first is inserted, the second is not
        for sequence in (0, 1):
            for host in range(HOSTS):
                told, slot = experience.edges(host, sequence), view_slot(layout, slots[sequence][host].data)
                np.testing.assert_array_equal(told.observation[0], slot.observation[0])
                np.testing.assert_array_equal(told.frames[-3:], slot.frames[-3:])  # that the next slot begins with
                np.testing.assert_array_equal(told.frames[:2], 0)
                assert slot.frames[:2].any()
                np.testing.assert_array_equal(told.is_first_frames, slot.is_first_frames)


def test_a_sample_arrives_as_it_was_drawn():
    config = config_of()
    blocks = SampleBlocks(make_replay_setup(config, RUN_KEY))
    layout, slots = slots_of(config, 4)
    experience = LocalReplayClient(config.agent.data, trajectory_shapes(config.agent, SPEC, ROWS, STEPS))
    for memories in slots:
        experience._buffer.insert(trajectory_on_host([view_slot(layout, memory.data) for memory in memories]))
    sample, _ = experience._buffer.sample(np.array([1, 2], np.uint32))
    other, _ = experience._buffer.sample(np.array([3, 4], np.uint32))
    experience.close()
    read = blocks.read(blocks.pack(7, [sample, other]))
    assert list(read) == [7, 8]
    require_same(read[7], sample)
    require_same(read[8], other)
    read = read[7]
    assert jax.tree.map(lambda leaf: leaf.dtype, read) == jax.tree.map(lambda leaf: leaf.dtype, sample)


def test_a_record_says_what_went_into_and_out_of_replay():
    totals = {
        "cluster/a/replay_received_bytes": 300.0,
        "cluster/a/replay_sent_bytes": 5000.0,
        "cluster/a/samples": 40.0,
        "cluster/a/sample_wait_seconds": 0.1,
    }
    assert traffic_values(totals, totals, 2.0) == {
        "cluster/a/replay_received_bytes_per_second": 150.0,
        "cluster/a/replay_sent_bytes_per_second": 2500.0,
        "cluster/a/samples_per_second": 20.0,
        "cluster/a/sample_wait_ms": pytest.approx(2.5),
    }
    idle = dict.fromkeys(totals, 0.0)
    assert "cluster/a/sample_wait_ms" not in traffic_values(totals, idle, 2.0)
