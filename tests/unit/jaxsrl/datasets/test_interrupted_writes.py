"""What a process that is killed while it writes a dataset leaves: nothing of its name, or the old or the new steps."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.datasets.d4rl import from_d4rl
from jaxsrl.datasets.dataset import find_damage, open_dataset
from jaxsrl.datasets.episodes import merge, write_first_steps
from jaxsrl.datasets.manifest import Manifest, read_manifest
from jaxsrl.datasets.writer import DatasetWriter, make_dataset
from tests.support.dataset_steps import EXTRAS, ROWS, SPEC, assert_equal, part, random_steps, write


def files_of(path):
    return {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def states_during(path, action):
    """Yields copies of a directory as it is after each call of a C function by the writer; a killed process leaves one of them."""
    states, writers = [files_of(path)], ("datasets/writer.py", "datasets/manifest.py", "checkpoints/run_directory.py")

    def note(frame, event, _):
        if event == "c_return" and frame.f_code.co_filename.endswith(writers):
            now = files_of(path)
            if now != states[-1]:
                states.append(now)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    assert len(states) > 3
    for number, state in enumerate(states):
        copy = path.with_name(f"state{number}")
        for name, data in state.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(data)
        yield copy


@pytest.mark.parametrize("kept", [70, 40, 0])
def test_reopened_dataset_has_old_or_new_steps(tmp_path, kept):
    steps = random_steps(100)
    write(tmp_path / "set", steps, [40, 30])

    def write_on():
        with DatasetWriter.reopen(tmp_path / "set", kept) as writer:
            writer.append(part(steps, kept, kept + 10))

    seen = set()
    for state in states_during(tmp_path / "set", write_on):
        count = read_manifest(state).num_steps
        seen.add(count)
        if count:
            assert_equal(open_dataset(state).steps, part(steps, 0, count))
            assert list(find_damage(state)) == []
        with DatasetWriter.reopen(state) as writer:
            assert writer.num_steps == count
    assert seen == {70, kept, kept + 10}


def test_segments_end_with_a_whole_step_or_none(tmp_path):
    steps = random_steps(30, 1)
    assert not steps.is_first[-1].all()
    write(tmp_path / "set", steps, [10, 20])

    def end_segment():
        with DatasetWriter.reopen(tmp_path / "set") as writer:
            writer.end_segment()

    seen = set()
    for state in states_during(tmp_path / "set", end_segment):
        assert list(find_damage(state)) == []
        dataset = open_dataset(state)
        seen.add(dataset.manifest.num_steps)
        assert_equal(part(dataset.steps, 0, 30), steps)
    assert seen == {30, 31}


def sets_of(path):
    for number in (1, 2):
        write(path / f"set{number}", random_steps(200, number), [200])
    return [path / "set1", path / "set2"]


def convert_d4rl(path, out):
    h5py = pytest.importorskip("h5py", reason="needs the extra minari")
    with h5py.File(path / "walk.hdf5", "w") as data:
        data["observations"], data["actions"] = np.zeros((4, 3)), np.zeros((4, 1))
        data["rewards"], data["terminals"] = np.arange(4.0), np.array([False, True, False, True])
    from_d4rl(path / "walk.hdf5", out, 1000)


MAKERS = {
    "merge": lambda path, out: merge(sets_of(path), out),
    "best": lambda path, out: merge(sets_of(path), out, 0.5),
    "first_steps": lambda path, out: write_first_steps(sets_of(path)[0], out, 100),
    "d4rl": convert_d4rl,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_directory_gets_its_name_when_it_is_complete(tmp_path, monkeypatch, make):
    (tmp_path / "whole").mkdir(), (tmp_path / "stopped").mkdir()
    make(tmp_path / "whole", tmp_path / "whole" / "out")
    out = tmp_path / "stopped" / "new" / "out"
    with monkeypatch.context() as patched:
        end_at_commit(patched, out)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "stopped", out)
    assert not out.exists()
    assert open_dataset(out.parent / ".out.partial" / "out").manifest.num_steps
    for directory in (tmp_path / "stopped").glob("set?"):
        shutil.rmtree(directory)
    make(tmp_path / "stopped", out)
    assert files_of(out) == files_of(tmp_path / "whole" / "out")
    assert os.listdir(out.parent) == ["out"]


def end_at_commit(monkeypatch, out):
    """Interrupts the writer of this dataset after its first commit."""
    commit = DatasetWriter.commit

    def commit_and_end(writer):
        commit(writer)
        if writer.path.name == out.name and writer.manifest.num_steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(DatasetWriter, "commit", commit_and_end)


KILLED_MERGE = """
import os, signal
import jaxsrl.cli.main
from jaxsrl.datasets.writer import DatasetWriter
commit = DatasetWriter.commit
def commit_and_die(writer):
    commit(writer)
    os.kill(os.getpid(), signal.SIGKILL)
DatasetWriter.commit = commit_and_die
jaxsrl.cli.main.main(["dataset", "merge", "set1", "set2", "--out", "both"])
"""


def test_killed_merge_leaves_no_dataset_of_its_name(tmp_path):
    sets = sets_of(tmp_path)
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    killed = subprocess.run([sys.executable, "-c", KILLED_MERGE], cwd=tmp_path, env=env, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(UserError, match="expected the directory of a dataset"):
        open_dataset(tmp_path / "both")
    assert list(find_damage(tmp_path / ".both.partial" / "both")) == []
    merge(sets, tmp_path / "both")
    assert sorted(os.listdir(tmp_path)) == ["both", "set1", "set2"]


def test_a_dataset_has_one_writer(tmp_path):
    with make_dataset(tmp_path / "set", Manifest(SPEC, ROWS, EXTRAS)) as writer:
        with (
            pytest.raises(UserError, match="in use by process .*another --out"),
            make_dataset(tmp_path / "set", Manifest(SPEC, ROWS, EXTRAS)),
        ):
            pass
        writer.append(random_steps(5))
    assert_equal(open_dataset(tmp_path / "set").steps, random_steps(5))


def test_directories_in_use_are_rejected_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir(), Path("file").touch(), Path("full/of").mkdir(parents=True)
    for name in ("file", "full", ".", ".."):
        with (
            pytest.raises(UserError, match=f"expected a new directory for a dataset: {name} cannot be replaced"),
            make_dataset(Path(name), Manifest(SPEC, ROWS, EXTRAS)),
        ):
            pass
    with make_dataset(Path("empty"), Manifest(SPEC, ROWS, EXTRAS)) as writer:
        writer.append(random_steps(5))
    assert open_dataset(Path("empty")).manifest.num_steps == 5


def test_an_error_before_the_first_step_leaves_nothing(tmp_path):
    steps = random_steps(5)
    ends = np.zeros((5, ROWS), bool)
    write(tmp_path / "set", dataclasses.replace(steps, terminated=ends, truncated=ends), [5])
    with pytest.raises(UserError, match="no dataset has a whole episode"):
        merge([tmp_path / "set"], tmp_path / "out", 0.5)
    assert os.listdir(tmp_path) == ["set"]
