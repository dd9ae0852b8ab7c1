"""Datasets on disk: writing in pieces, interruption, damage, episodes and merging."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from agents.transforms.frame_stacking import stack_frames
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec
from jaxsrl.datasets.dataset import describe, find_damage, find_episodes, open_dataset
from jaxsrl.datasets.episodes import merge
from jaxsrl.datasets.hindsight import episode_values
from jaxsrl.datasets.manifest import MANIFEST, CorruptDatasetError, Manifest, leaf_file
from jaxsrl.datasets.writer import DatasetWriter, _LeafFile
from tests.support.dataset_steps import EXTRAS, ROWS, SPEC, assert_equal, part, random_steps, write


def test_steps_written_in_pieces_are_read_whole(tmp_path):
    steps = random_steps(100)
    dataset = write(tmp_path / "set", steps, [1, 30, 2, 60, 7])
    assert_equal(dataset.steps, steps)
    assert len(dataset.manifest.shards) > 2
    assert list(find_damage(tmp_path / "set")) == []
    # The files are numpy's own.
    file = tmp_path / "set" / leaf_file("observation/a b")
    np.testing.assert_array_equal(np.load(file), steps.observation["a b"])


def test_a_dataset_is_continued_and_drops_later_steps(tmp_path):
    steps = random_steps(100)
    write(tmp_path / "set", steps, [40, 30])
    with DatasetWriter.reopen(tmp_path / "set", 40) as writer:
        assert writer.num_steps == 40
        writer.append(part(steps, 40, 100))
    assert_equal(open_dataset(tmp_path / "set").steps, steps)
    assert list(find_damage(tmp_path / "set")) == []


def test_a_new_dataset_needs_a_new_directory(tmp_path):
    write(tmp_path / "set", random_steps(5), [5])
    with pytest.raises(UserError, match="expected a new directory"):
        DatasetWriter(tmp_path / "set", Manifest(SPEC, ROWS))
    with pytest.raises(UserError, match="expected the directory of a dataset"):
        open_dataset(tmp_path)


def test_other_shapes_are_rejected(tmp_path):
    writer = DatasetWriter(tmp_path / "set", Manifest(SPEC, ROWS, EXTRAS))
    steps = random_steps(5)
    with writer:
        with pytest.raises(UserError, match="dataset leaf .*expected"):
            writer.append(random_steps(5, num_rows=2))
        with pytest.raises(UserError, match="dataset leaf extras/log_prob: expected .*, got None"):
            writer.append(dataclasses.replace(steps, extras={}))
        writer.append(steps)
    assert_equal(open_dataset(tmp_path / "set").steps, steps)  # nothing of the others


def test_a_recording_without_a_shard_has_no_steps_yet(tmp_path):
    writer = DatasetWriter(tmp_path / "set", Manifest(SPEC, ROWS, EXTRAS))
    with pytest.raises(UserError, match="has no steps yet: .*record again"):
        open_dataset(tmp_path / "set")
    writer.append(random_steps(5))
    writer.close()
    assert open_dataset(tmp_path / "set").manifest.num_steps == 5


WRITER = """
import sys, time
from pathlib import Path
from tests.unit.jaxsrl.datasets.test_datasets import *
writer = DatasetWriter(Path(sys.argv[1]), Manifest(SPEC, ROWS, EXTRAS), 2000)
steps = random_steps(100_000)
for begin in range(0, 100_000, 10):
    writer.append(part(steps, begin, begin + 10))
    print(writer.manifest.num_steps, flush=True)
"""


def test_a_killed_recording_loses_the_open_shard_only(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "set")], stdout=subprocess.PIPE, text=True
    ) as process:
        committed = 0
        assert process.stdout is not None
        while committed < 200:
            committed = int(process.stdout.readline())
        process.kill()
        process.wait(30)
        committed = max([committed, *map(int, process.stdout.read().split())])
    dataset = open_dataset(tmp_path / "set")
    assert dataset.manifest.num_steps >= committed
    assert list(find_damage(tmp_path / "set")) == []
    count = dataset.manifest.num_steps
    steps = random_steps(100_000)
    assert_equal(dataset.steps, part(steps, 0, count))
    with DatasetWriter.reopen(tmp_path / "set") as writer:
        writer.append(part(steps, count, count + 10))
    assert_equal(open_dataset(tmp_path / "set").steps, part(steps, 0, count + 10))


def test_a_damaged_shard_is_named(tmp_path):
    write(tmp_path / "set", random_steps(100), [20] * 5, shard_bytes=1)
    file = tmp_path / "set" / leaf_file("reward")
    data = bytearray(file.read_bytes())
    data[-45 * ROWS * 4] ^= 1  # of step 55
    file.write_bytes(data)
    (line,) = find_damage(tmp_path / "set")
    assert "reward.npy: shard 2, steps 40 to 59 of each row, is damaged" in line
    file.write_bytes(data[:-4])
    with pytest.raises(CorruptDatasetError, match=r"reward\.npy"):
        open_dataset(tmp_path / "set")
    file.unlink()
    with pytest.raises(CorruptDatasetError, match=r"reward\.npy cannot be read"):
        open_dataset(tmp_path / "set")


def test_a_damaged_observation_after_the_last_step_is_named(tmp_path):
    path = write(tmp_path / "set", random_steps(100), [20] * 5, shard_bytes=1).path
    for name in ("observation/c", "is_first"):
        data = bytearray((path / leaf_file(name)).read_bytes())
        data[-1] ^= 1
        (path / leaf_file(name)).write_bytes(data)
    lines = sorted(line.removeprefix(str(path)) for line in find_damage(path))
    assert lines == [
        f"/{leaf_file(name)}: the value after the last step of each row is damaged"
        for name in ("is_first", "observation/c")
    ]
    # Earlier versions stored no such checksum.
    manifest = json.loads((path / MANIFEST).read_text())
    for shard in manifest["shards"]:
        del shard["tails"]
    (path / MANIFEST).write_text(json.dumps(manifest))
    assert list(find_damage(path)) == []


def test_a_damaged_manifest_is_named(tmp_path):
    file = write(tmp_path / "set", random_steps(5), [5]).path / MANIFEST
    file.write_bytes(file.read_bytes().replace(b"env", b"\xffnv", 1))
    with pytest.raises(CorruptDatasetError, match=r"manifest\.json cannot be read"):
        open_dataset(tmp_path / "set")


def loop_over_episodes(steps):
    """Returns (row, begin, end, return) of whole episodes, by a loop over steps."""
    found = []
    for row in range(steps.reward.shape[1]):
        begin, total = None, 0.0
        for t in range(len(steps.reward)):
            if steps.is_first[t, row] and steps.valid[t, row]:
                begin, total = t, 0.0
            if steps.valid[t, row]:
                total += float(steps.reward[t, row])
            if (steps.terminated[t, row] or steps.truncated[t, row]) and begin is not None:
                found.append((row, begin, t + 1, total))
                begin = None
    return sorted(found, key=lambda one: (one[2], one[0]))


def test_episodes_are_those_of_a_loop(tmp_path):
    steps = part(random_steps(203), 3, 203)  # begins within episodes
    episodes = find_episodes(steps)
    expected = loop_over_episodes(steps)
    assert len(expected) > 20
    got = zip(episodes.row, episodes.begin, episodes.end, strict=True)
    assert list(got) == [one[:3] for one in expected]
    np.testing.assert_allclose(episodes.returns, [one[3] for one in expected], atol=1e-5)


def test_description_counts_steps_episodes_and_scores(tmp_path):
    steps = random_steps(100)
    dataset = write(tmp_path / "set", steps, [100], score_random=0.0, score_expert=2.0, origin={"agent": "test"})
    told, returns = describe(dataset), [one[3] for one in loop_over_episodes(steps)]
    assert told["env_steps"] == steps.valid.sum()
    assert told["episodes"] == len(returns)
    assert told["mean_return"] == pytest.approx(np.mean(returns), abs=1e-5)
    assert told["normalized_score"] == pytest.approx(50.0 * np.mean(returns), abs=1e-3)
    assert told["origin"] == {"agent": "test"}


@pytest.mark.parametrize("reopened", [False, True])
def test_segments_do_not_continue_each_other(tmp_path, reopened):
    first, second = random_steps(30, 1), random_steps(30, 2)
    assert not first.is_first[-1].all()
    writer = DatasetWriter(tmp_path / "set", Manifest(SPEC, ROWS, EXTRAS))
    writer.append(first)
    if reopened:
        writer.close()
        writer = DatasetWriter.reopen(tmp_path / "set")
    writer.end_segment()
    writer.append(second)
    writer.close()
    assert list(find_damage(tmp_path / "set")) == []
    steps = open_dataset(tmp_path / "set").steps
    assert not steps.valid[30].any()
    assert steps.is_first[31].all()
    np.testing.assert_array_equal(steps.observation["c"][30], first.observation["c"][-1])
    assert_equal(part(steps, 0, 29), part(first, 0, 29))
    np.testing.assert_array_equal(steps.truncated[29], first.truncated[29])
    assert_equal(part(steps, 31, 61), second)
    assert returns_of(open_dataset(tmp_path / "set")) == sorted(
        round(episode[3], 5) for part_of in (first, second) for episode in loop_over_episodes(part_of)
    )


def returns_of(dataset):
    return sorted(find_episodes(dataset.steps).returns.round(5))


def test_merging_keeps_rows_or_takes_whole_episodes(tmp_path):
    one = write(tmp_path / "one", random_steps(80, 1), [80])
    two = write(tmp_path / "two", random_steps(90, 2), [90])
    three = write(tmp_path / "three", random_steps(90, 3, 1), [90], num_rows=1)
    rows = merge([one.path, two.path], tmp_path / "rows")
    assert rows.manifest.num_rows == ROWS
    assert rows.num_valid_steps == one.num_valid_steps + two.num_valid_steps
    assert returns_of(rows) == sorted(returns_of(one) + returns_of(two))
    streams = merge([one.path, three.path], tmp_path / "streams")
    assert streams.manifest.num_rows == 1
    assert returns_of(streams) == sorted(returns_of(one) + returns_of(three))
    best = merge([one.path, two.path], tmp_path / "best", best=0.25)
    both = sorted(returns_of(one) + returns_of(two))
    assert returns_of(best) == both[-round(0.25 * len(both)) :]
    assert list(find_damage(tmp_path / "best")) == []
    with pytest.raises(UserError, match=r"in \(0, 1\]"):
        merge([one.path], tmp_path / "none", best=0.0)


def cut_steps(seed, offsets):
    """Returns 40 steps of episodes of 8 steps and resets; each row begins so many steps after the first one of an episode."""
    place = (np.arange(41)[:, None] + np.array(offsets)) % 9
    ends = place[:-1] == 7
    steps = part(random_steps(40, seed), 0, 40)
    return dataclasses.replace(
        steps, is_first=place == 0, terminated=ends, truncated=np.zeros_like(ends), valid=place[:-1] != 8
    )


@pytest.mark.parametrize(("offsets", "is_cut"), [((0, 3, 5), True), ((5, 5, 5), False)])
def test_cut_episodes_of_merged_datasets_stay_apart(tmp_path, offsets, is_cut):
    first, second = cut_steps(1, offsets), cut_steps(2, (0, 3, 5))
    one, two = write(tmp_path / "one", first, [40]), write(tmp_path / "two", second, [40])
    merged = merge([one.path, two.path], tmp_path / "both")
    assert list(find_damage(merged.path)) == []
    steps, episodes = merged.steps, find_episodes(merged.steps)
    begin = 42 if is_cut else 41  # where all rows have just been reset, the first dataset needs no such step
    assert_equal(part(steps, begin, begin + 39), part(second, 0, 39))
    assert_equal(part(steps, 0, 39), part(first, 0, 39))
    is_own = episodes.end <= 40
    assert (episodes.begin[~is_own] >= begin).all()
    own, others = find_episodes(first), find_episodes(second)
    np.testing.assert_array_equal(episodes.returns[is_own], own.returns)
    np.testing.assert_array_equal(episodes.returns[~is_own], others.returns)
    # Frames before the first step of a dataset are not those of the other.
    frames, is_first = (np.asarray(each[begin - 2 : begin + 1]) for each in (steps.observation["a b"], steps.is_first))
    stack = np.asarray(stack_frames(frames, is_first, 3))[0]
    np.testing.assert_array_equal(stack, np.stack([second.observation["a b"][0]] * 3, axis=1))
    # An episode whose beginning is not recorded has no values.
    known = np.isfinite(episode_values(steps)["return_to_go"])
    assert known[begin, 0]
    assert not known[begin : begin + 3, 1:].any()
    best = merge([merged.path], tmp_path / "best", 0.5)
    assert set(returns_of(best)) <= set(episodes.returns.round(5))


def test_a_later_end_is_not_that_of_an_earlier_beginning():
    steps = random_steps(30, num_rows=1)
    zeros = np.zeros((30, 1), bool)
    terminated, is_first = zeros.copy(), np.zeros((31, 1), bool)
    terminated[[4, 20]], is_first[0] = True, True  # steps 6 to 20 are the end of an episode of another recording
    steps = dataclasses.replace(steps, is_first=is_first, terminated=terminated, truncated=zeros, valid=~zeros)
    episodes, values = find_episodes(steps), episode_values(steps)
    assert list(zip(episodes.begin, episodes.end, strict=True)) == [(0, 5)]
    assert values["return_to_go"][0, 0] == pytest.approx(steps.reward[:5].sum(), abs=1e-5)
    assert not np.isfinite(values["return_to_go"][5:]).any()


def test_values_of_another_form_are_not_merged(tmp_path):
    one = write(tmp_path / "one", random_steps(20), [20])
    steps = random_steps(20)
    steps = dataclasses.replace(steps, extras={"log_prob": np.zeros((20, ROWS, 2), np.float32)})
    with DatasetWriter(tmp_path / "two", Manifest(SPEC, ROWS, {"log_prob": ArraySpec((2,), "float32")})) as writer:
        writer.append(steps)
    with pytest.raises(UserError, match=r"expected log_prob of .*two to be float32 \(\) .*got float32 \(2,\)"):
        merge([one.path, tmp_path / "two"], tmp_path / "both")
    assert not (tmp_path / "both").exists()


def test_nothing_after_a_failed_write_is_committed(tmp_path, monkeypatch):
    steps, fails = random_steps(24), [True]
    append = _LeafFile.append

    def append_or_fail(leaf, values, count):
        if leaf._name == "reward" and written.num_steps == 8 and fails.pop():
            raise OSError("no space left")
        append(leaf, values, count)

    written = DatasetWriter(tmp_path / "set", Manifest(SPEC, ROWS, EXTRAS))
    written.append(part(steps, 0, 8))
    written.commit()
    monkeypatch.setattr(_LeafFile, "append", append_or_fail)
    with pytest.raises(OSError, match="no space left"):
        written.append(part(steps, 8, 16))
    for write_more in (lambda: written.append(part(steps, 16, 24)), written.commit):
        with pytest.raises(OSError, match="an earlier write failed: no space left"):
            write_more()
    written.close()
    assert_equal(open_dataset(tmp_path / "set").steps, part(steps, 0, 8))
    assert not list(find_damage(tmp_path / "set"))
