"""Parameters in shared memory: who acts with what, and that nobody ever reads half of two versions."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import LayoutMismatchError
from envpool_bridge.shm.packed_arrays import params_layout
from jaxsrl.collect.params.shared_memory import SharedParams
from jaxsrl.collect.params.store import ParamsStore

ROOT = Path(__file__).parents[5]
LAYOUT = params_layout([((3, 2), "float32"), ((), "int32"), ((5,), "bool"), ((0,), "float32")])
# Large enough that a copy takes long beside the writer, small enough that the writer comes round many times.
TORN = params_layout([((40_000,), "int64"), ((3,), "int64")])
WRITER = """
import select, sys, time
import numpy as np
from jaxsrl.collect.params.shared_memory import SharedParams; from envpool_bridge.shm.packed_arrays import params_layout
shared = SharedParams(params_layout([((40_000,), "int64"), ((3,), "int64")]), int(sys.argv[1]))
print("ready", flush=True)
version, until = 1, time.monotonic() + 60.0
while not select.select([sys.stdin], [], [], 0.0)[0] and time.monotonic() < until:
    shared.publish(version, [np.full(40_000, version), np.full(3, version)])
    version += 1
print(version)
"""


def leaves(version: int) -> list[np.ndarray]:
    return [
        np.full((3, 2), version, np.float32),
        np.array(version, np.int32),
        np.arange(5) == version,
        np.zeros(0, np.float32),
    ]


@pytest.fixture
def shared():
    made = SharedParams(LAYOUT)
    yield made
    made.close()


def test_another_mapping_reads_what_was_published(shared):
    reader = SharedParams(LAYOUT, os.dup(shared.descriptor))
    assert reader.newest() == -1
    assert reader.read(0) is None
    shared.publish(0, leaves(0))
    shared.publish(3, leaves(3))
    for version in (0, 3):
        for got, expected in zip(reader.read(version), leaves(version), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
    reader.close()


def test_what_was_read_stays_as_it_was(shared):
    shared.publish(0, leaves(0))
    before = shared.read(0)
    for version in range(1, 5):
        shared.publish(version, leaves(version))
    np.testing.assert_array_equal(before[0], leaves(0)[0])


@pytest.mark.parametrize("lag", [0, 1, 2, 3, 8])
def test_who_acts_is_decided_as_the_store_decides_it(shared, lag):
    store = ParamsStore(lag)
    for version in range(8):
        store.publish(version, version)
        shared.publish(version, leaves(version))
        # No older sequence is filled any more: this version was made of all before `version`.
        for sequence in range(version, version + lag + 3):
            expected = store.acting(sequence, 0.0)
            found = shared.read_acting(sequence, lag)
            assert shared.acting_version(sequence, lag) == (expected[0] if expected else None)
            assert (found is None) == (expected is None)
            if found is not None:
                assert found[0] == expected[0]
                np.testing.assert_array_equal(found[1][0], leaves(found[0])[0])


def test_only_the_two_newest_versions_are_there(shared):
    for version in range(4):
        shared.publish(version, leaves(version))
    assert [shared.read(version) is not None for version in range(5)] == [False, False, True, True, False]


@pytest.mark.parametrize("version", [1, 2])
def test_versions_only_grow(shared, version):
    shared.publish(2, leaves(2))
    with pytest.raises(ValueError, match=f"expected one above 2, got {version}"):
        shared.publish(version, leaves(version))


def test_parameters_of_another_shape_or_type_are_refused(shared):
    for index, wrong in ((0, np.zeros((2, 3), np.float32)), (1, np.array(1, np.int64))):
        changed = leaves(0)
        changed[index] = wrong
        with pytest.raises(ValueError, match="shapes changed"):
            shared.publish(0, changed)
    with pytest.raises(ValueError, match="shapes changed"):
        shared.publish(0, leaves(0)[:-1])
    assert shared.newest() == -1


def test_memory_of_another_size_is_refused(shared):
    descriptor = os.dup(shared.descriptor)
    with pytest.raises(LayoutMismatchError, match=f"expected a segment of {TORN.total_bytes} bytes"):
        SharedParams(TORN, descriptor)
    os.close(descriptor)


def test_a_version_that_goes_while_it_is_copied_is_not_read(shared):
    shared.publish(0, leaves(0))

    def overtake():
        shared._barrier = lambda: None
        shared.publish(1, leaves(1))
        shared.publish(2, leaves(2))

    shared._barrier = overtake  # between the copy and the second look
    assert shared.read(0) is None


def test_overtaken_reader_retries_with_the_newer_version(shared):
    shared.publish(0, leaves(0))

    def overtake():
        shared._barrier = lambda: None
        shared.publish(1, leaves(1))
        shared.publish(2, leaves(2))

    shared._barrier = overtake
    version, got = shared.read_acting(2, 2)
    assert version == 2
    np.testing.assert_array_equal(got[0], leaves(2)[0])


def test_publish_hides_only_the_overwritten_version(shared):
    reader = SharedParams(LAYOUT, os.dup(shared.descriptor))
    seen = []
    shared.publish(0, leaves(0))
    shared.publish(1, leaves(1))
    shared._barrier = lambda: seen.append((reader.newest(), reader.read(0), reader.read(2), reader.read(1)[0]))
    shared.publish(2, leaves(2))
    assert len(seen) == 2  # before the first byte, and after the last
    for newest, replaced, written, kept in seen:
        assert (newest, replaced, written) == (1, None, None)
        np.testing.assert_array_equal(kept, leaves(1)[0])
    reader.close()


def test_concurrent_publishing_tears_no_version():
    shared = SharedParams(TORN)
    command = [sys.executable, "-c", WRITER, str(shared.descriptor)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        pass_fds=[shared.descriptor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as writer:
        assert writer.stdout.readline() == "ready\n"
        seen: set[int] = set()
        while len(seen) <= 100 and writer.poll() is None:
            older = shared.newest() - 1  # the one that is being replaced
            for version, found in ((older, shared.read(older)), shared.read_acting(0, 2) or (0, None)):
                if found is None:
                    continue
                large, small = found
                assert large.min() == large.max() == version
                assert small.tolist() == [version] * 3
                seen.add(version)
        published = int(writer.communicate("enough\n")[0])
    shared.close()
    assert len(seen) > 100
    assert published >= max(seen)
