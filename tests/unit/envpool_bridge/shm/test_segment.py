"""Shared memory stays mapped while anything views it, and is unmapped with the last view."""

import errno
import gc
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.probes.single_agent import MatchObservation
from envpool_bridge.errors import SegmentTooLargeError
from envpool_bridge.pool import EnvPool
from envpool_bridge.shm import segment
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.ring import Counters
from envpool_bridge.shm.segment import SharedBytes, reserve
from envpool_bridge.shm.slots import view_slots
from envpool_bridge.shm.worker_board import WorkerBoard

SHAPE = PoolShape(num_workers=1, lanes_per_worker=1, workers_per_lane=1, rows_per_part=4, rollout_length=8, num_slots=2)
SOURCE = GymnasiumSource(MatchObservation)


@pytest.fixture
def mappings():
    """Returns a function that lists the shared memory mapped since the test began, from what the kernel says."""

    def listed():
        return {line.split()[-2] for line in Path("/proc/self/maps").read_text().splitlines() if "/jaxsrl-" in line}

    gc.collect()
    before = listed()
    return lambda: listed() - before


def test_slot_views_keep_the_memory_until_the_last_is_dropped(mappings):
    layout = make_layout(SOURCE.spec(), SHAPE, {}, ())
    memory = segment.create(layout)
    counters = Counters(layout, memory.buffer)
    slots = view_slots(layout, memory.buffer)
    row = slots[1].observation[3, 2]
    row[...] = 0.5
    counters.close()
    memory.close()
    memory.close()
    del slots
    assert len(mappings()) == 1
    assert row.tolist() == [0.5]
    del row
    assert not mappings()


@pytest.mark.parametrize("view", ["observation", "slot_memory", "next_action"])
def test_views_of_a_closed_segment_stay_valid(view, mappings):
    pool = EnvPool(SOURCE, SHAPE)
    held = {
        "observation": lambda: pool.access.act_rows(pool.views[0], 0, slice(0, 4)).observation,
        "slot_memory": lambda: pool.slot_memory(0),
        "next_action": lambda: pool.next_action(0),
    }[view]()
    held[...] = 1
    pool.close()
    assert len(mappings()) == 1
    held[...] += 1
    assert (held == 2).all()
    del held
    gc.collect()
    assert not mappings()


def test_a_closed_pool_that_is_kept_holds_no_memory(mappings):
    pool = EnvPool(SOURCE, SHAPE)
    assert len(mappings()) == 2  # the segment and the workers' board
    pool.close()
    assert not mappings()
    pool.close()


def test_the_workers_board_is_unmapped_with_its_episodes(mappings):
    board = WorkerBoard(SHAPE)
    board.record_episodes(0, 0, [5, 6, 7, 8])
    episodes = board._episodes
    board.close()
    assert episodes[0].tolist() == [5, 6, 7, 8]
    del episodes
    assert not mappings()


def test_an_array_of_the_buffer_keeps_the_mapping(mappings):
    memory = SharedBytes(reserve(64, "a test"), 64)
    array = np.frombuffer(memory.buffer, np.uint8)
    memory.close()
    assert memory.descriptor == -1
    assert len(mappings()) == 1
    array[...] = 7
    del array
    assert not mappings()


def test_a_jax_array_that_aliases_a_slot_keeps_the_memory(mappings):
    import jax  # the rest of this file needs none

    pool = EnvPool(SOURCE, SHAPE)
    pool.views[0].reward[...] = 3.0
    cpu = jax.local_devices(backend="cpu")[0]
    aliasing = jax.device_put(pool.views[0].reward, cpu)
    assert aliasing.unsafe_buffer_pointer() == pool.views[0].reward.ctypes.data
    pool.close()
    gc.collect()
    assert len(mappings()) == 1
    assert float(aliasing.sum()) == 3.0 * aliasing.size
    del aliasing
    gc.collect()
    assert not mappings()


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_memory_without_a_name_replaces_an_unusable_directory(monkeypatch, number):
    def fail(*args, **options):
        raise OSError(number, "a read-only directory, or one without inodes")

    monkeypatch.setattr(segment.posix_ipc, "SharedMemory", fail)
    memory = SharedBytes(reserve(100, "this test"), 100)
    assert bytes(memory.buffer) == bytes(100)
    memory.close()


def test_more_memory_than_this_process_may_use_is_rejected(monkeypatch):
    monkeypatch.setattr(segment, "free_host_bytes", lambda: 2**20)
    with pytest.raises(SegmentTooLargeError, match=r"this test needs 2\.0 MiB .* 1\.0 MiB of memory that are free"):
        reserve(2**21, "this test")
