"""The replay benchmark: that every contender runs, that ratios are what they are called, and memory is told."""

import importlib.util
import json
import sys

import numpy as np
import pytest

import jaxsrl.bench.replay
from envpool_bridge.errors import UserError
from jaxsrl.bench.replay import bench_replay
from jaxsrl.bench.replay_sizes import BenchSizes
from jaxsrl.bench.rivals.replay_numpy import careful_ring, plain_ring
from jaxsrl.bench.rivals.replay_reverb import reverb_contender

SMALL = BenchSizes((6, 6), "uint8", frames=4, batch_size=8, capacity=1024)


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_every_contender_inserts_and_draws_in_one_json_object(monkeypatch, exponent):
    monkeypatch.setattr(jaxsrl.bench.replay, "_SIZES", {"atari": SMALL})
    found = bench_replay(("atari",), exponent, rounds=2, seconds=0.01)
    assert json.loads(json.dumps(found)) == found
    rows = {row["contender"]: row for row in found["atari"]}
    expected = {"device", "host"} | ({"numpy", "numpy, same rules"} if not exponent else set())
    if importlib.util.find_spec("flashbax") is not None:
        expected.add("flashbax")
    assert set(rows) == expected
    for name, row in rows.items():
        assert row["insert_env_steps_per_second"] > 0
        assert row["sample_windows_per_second"] > 0
        assert row["theoretical_bytes_per_env_step"] == 36 + 1 + 4 + 4 + 3 + 4 + (4 if exponent else 0)
        if name in {"device", "host"}:
            # The frames that precede the first step, and the one after the newest, are few in a ring of usual size.
            around, tree = 4 * 16 * 37 / 1024, 5 if exponent else 0
            assert 52 + around <= row["bytes_per_env_step"] < 52.1 + around + tree
    for rate in ("insert", "sample"):
        for ours in ("device", "host"):
            assert rows[ours][f"{rate}_ratio_of_{ours}"] == 1.0
        there, back = rows["host"][f"{rate}_ratio_of_device"], rows["device"][f"{rate}_ratio_of_host"]
        assert there > 0.0
        assert back > 0.0


@pytest.mark.parametrize("ring", [plain_ring, careful_ring])
def test_numpy_rings_sample_inserted_steps(ring):
    found, slot = ring(SMALL), SMALL.slot()
    counts = range(4) if ring is plain_ring else range(1)
    for _ in counts:  # 16 steps of 16 rows: the ring has room for 64
        found.insert_one()
    windows = found.sample_one()
    rows = SMALL.num_rows
    steps = slot.observation[3:19].reshape(16, rows, -1)
    for index in range(SMALL.batch_size):
        frames = windows["observation"][:, index].reshape(5, -1)
        place, row = np.argwhere((steps == frames[3]).all(axis=2))[0]
        after = slot.observation[3 + place + 1] if ring is careful_ring or place < 15 else slot.observation[3]
        np.testing.assert_array_equal(frames[4], after[row].reshape(-1))
        if ring is careful_ring:
            expected = slot.observation[place : place + 3, row].reshape(3, -1)
            np.testing.assert_array_equal(frames[:3], expected)
        assert windows["reward"][index] == slot.reward[place, row]
        assert windows["is_first"].shape == (5, SMALL.batch_size)
    if ring is careful_ring:
        np.testing.assert_allclose(windows["probability"], 1 / 256)


def test_bench_replay_rejects_zero_sizes():
    with pytest.raises(UserError, match="expected at least one of `--sizes atari vector`"):
        bench_replay(sizes=())


def test_bench_replay_rejects_interpreter_without_reverb():
    if importlib.util.find_spec("reverb") is not None:
        pytest.skip("dm-reverb is installed")
    with (
        pytest.raises(UserError, match="to have dm-reverb: it did not start"),
        reverb_contender(SMALL, 0.0, sys.executable),
    ):
        pass
