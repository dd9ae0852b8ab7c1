"""The replay benchmark: that every contender runs, that ratios are what they are called, and memory is told."""

import importlib.util
import json
import sys

import pytest

import jaxsrl.bench.replay
from envpool_bridge.errors import UserError
from jaxsrl.bench.replay import bench_replay
from jaxsrl.bench.replay_reverb import reverb_contender
from jaxsrl.bench.replay_sizes import BenchSizes

SMALL = BenchSizes((6, 6), "uint8", frames=4, batch_size=8, capacity=1024)


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_every_contender_inserts_and_draws_in_one_json_object(monkeypatch, exponent):
    monkeypatch.setattr(jaxsrl.bench.replay, "_SIZES", {"atari": SMALL})
    found = bench_replay(("atari",), exponent, rounds=2, seconds=0.01)
    assert json.loads(json.dumps(found)) == found
    rows = {row["contender"]: row for row in found["atari"]}
    expected = {"device", "host"} | ({"numpy"} if not exponent else set())
    if importlib.util.find_spec("flashbax") is not None:
        expected.add("flashbax")
    assert set(rows) == expected
    for name, row in rows.items():
        assert row["insert_env_steps_per_second"] > 0
        assert row["sample_windows_per_second"] > 0
        assert row["theoretical_bytes_per_env_step"] == 36 + 1 + 4 + 4 + 3 + 4
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


def test_nothing_to_measure_is_refused():
    with pytest.raises(UserError, match="at least 1 round and 1 size: got 0"):
        bench_replay(rounds=0)
    with pytest.raises(UserError, match="at least 1 round and 1 size"):
        bench_replay(sizes=())


def test_an_interpreter_without_reverb_is_refused():
    if importlib.util.find_spec("reverb") is not None:
        pytest.skip("dm-reverb is installed")
    with (
        pytest.raises(UserError, match="to have dm-reverb: it did not start"),
        reverb_contender(SMALL, 0.0, sys.executable),
    ):
        pass
