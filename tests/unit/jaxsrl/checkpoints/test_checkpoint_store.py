"""The checkpoint store beyond single faults: retention, repetition, what a crash leaves, and any tree of arrays."""

import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import jaxsrl.checkpoints.store
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import (
    MANIFEST,
    CheckpointSaveError,
    CheckpointStore,
    CorruptCheckpointError,
    RemovedCheckpointError,
    flatten,
    load_checkpoint,
    load_in_use,
    unflatten,
)

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "bool"]
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.dictionaries(
    st.sampled_from(["learner.params['a b']['kernel']", "learner.x[0]", "episodes/return", "environments/lengths"]),
    st.sampled_from(DTYPES).flatmap(lambda dtype: arrays_of.arrays(dtype, SHAPES)),
    min_size=1,
)


def small(value):
    return {"w": np.full((3, 2), value, np.float32)}


@settings(max_examples=12, deadline=None)
@given(ARRAYS)
def test_any_arrays_come_back_to_the_bit(tmp_path_factory, given_arrays):
    given_arrays = {**given_arrays, **small(1)}  # there are always parameters
    path = CheckpointStore(tmp_path_factory.mktemp("store")).save(1, given_arrays, {})
    got, _ = load_checkpoint(path)
    assert set(got) == set(given_arrays)
    for name, expected in given_arrays.items():
        assert (got[name].shape, got[name].dtype) == (expected.shape, expected.dtype)
        assert got[name].tobytes() == expected.tobytes()  # NaN and -0.0 included


def test_bfloat16_and_key_data_come_back_to_the_bit(tmp_path):
    tree = {"half": jnp.array([0.1, -0.0, 3e38], jnp.bfloat16), "key": jax.random.key_data(jax.random.key(7))}
    path = CheckpointStore(tmp_path).save(1, flatten(tree, "learner"), {})
    again = unflatten(tree, load_checkpoint(path)[0], "learner")
    for name, expected in tree.items():
        assert again[name].dtype == expected.dtype
        assert np.asarray(again[name]).tobytes() == np.asarray(expected).tobytes()


def test_metadata_come_back_with_their_nesting(tmp_path):
    metadata = {"agent_name": "ppo", "experiment": {"agent": {"target_kl": None, "discount": 0.99}}, "env_steps": 8192}
    path = CheckpointStore(tmp_path).save(1, small(1), metadata)
    assert load_checkpoint(path)[1] == metadata


def test_saving_a_step_again_replaces_it(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(4, small(1), {})
    store.save(4, small(2), {})
    step, got, _, problems = store.restore_newest()
    assert (step, problems, store.steps()) == (4, [], [4])
    np.testing.assert_array_equal(got["w"], small(2)["w"])


def test_steps_are_ordered_as_numbers_and_only_numbers_are_steps(tmp_path):
    store = CheckpointStore(tmp_path, keep=9)
    for step in (9, 100, 20):
        store.save(step, small(step), {})
    (tmp_path / "notes").mkdir()
    (tmp_path / ".7.tmp").mkdir()
    assert store.steps() == [9, 20, 100]
    assert store.restore_newest()[0] == 100


def test_store_ignores_leftovers_of_a_crash(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, small(1), {})
    left = tmp_path / ".2.tmp" / "state"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    assert store.restore_newest()[0] == 1
    store.save(2, small(2), {})
    assert store.restore_newest()[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def test_restore_newest_up_to_a_step(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in (2, 4, 6):
        store.save(step, small(step), {})
    assert [store.restore_newest(last=last)[0] for last in (9, 6, 5, 2)] == [6, 6, 4, 2]
    assert store.restore_newest(last=1) is None


def test_an_error_while_writing_leaves_the_older_ones(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, small(1), {})

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jaxsrl.checkpoints.store, "file_sha256", full)
    with pytest.raises(
        CheckpointSaveError, match=r"update 2 could not be .*No space left.*the newest is that of update 1"
    ):
        store.save(2, small(2), {})
    monkeypatch.undo()
    assert store.steps() == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]
    assert store.restore_newest()[0] == 1


def test_restore_newest_skips_and_reports_damaged_checkpoints(tmp_path):
    store = CheckpointStore(tmp_path, keep=4)
    for step in (1, 2, 3):
        store.save(step, small(step), {})
    for step in (2, 3):
        (tmp_path / str(step) / MANIFEST).write_text("{}")
    step, _, _, problems = store.restore_newest()
    assert step == 1
    assert [str(tmp_path / name) in problem for name, problem in zip("32", problems, strict=True)] == [True, True]
    assert len(list((tmp_path / "quarantine").iterdir())) == 2
    # The run goes on from update 1 and its next checkpoints may be damaged too.
    store.save(3, small(3), {})
    (tmp_path / "3" / MANIFEST).write_text("{}")
    assert store.restore_newest()[0] == 1
    assert len(list((tmp_path / "quarantine").iterdir())) == 3


def test_the_manifest_says_what_every_array_and_file_is(tmp_path):
    path = CheckpointStore(tmp_path).save(1, {**small(1), "empty": np.zeros((0, 3))}, {})
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["schema"] == {
        "w": {"shape": [3, 2], "dtype": "float32"},
        "empty": {"shape": [0, 3], "dtype": "float64"},
    }
    assert all(len(digest) == 64 for digest in manifest["files"].values())


def test_a_checkpoint_without_its_manifest_is_damaged_too(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, small(1), {})
    (store.save(2, small(2), {}) / MANIFEST).unlink()  # what a kill in the middle of removing it leaves
    step, _, _, problems = store.restore_newest()
    assert step == 1
    assert f"{MANIFEST} is missing; moved to" in problems[0]
    assert store.steps() == [1]


def test_who_only_reads_moves_nothing(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, small(1), {})
    (store.save(2, small(2), {}) / MANIFEST).write_text("{}")
    step, _, _, problems = store.read_newest()
    assert (step, len(problems), store.steps()) == (1, 1, [1, 2])
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.parametrize("stage", ["read_manifest", "verify_files", "validate_stored_arrays"])
def test_a_checkpoint_removed_while_it_is_read_is_not_missed(tmp_path, monkeypatch, stage):
    store, reads = CheckpointStore(tmp_path, keep=1), []
    store.save(1, small(1), {})
    original = getattr(jaxsrl.checkpoints.store, stage)

    def read_late(path, *args):
        reads.append(path.name)
        if len(reads) <= 2:
            store.save(1 + len(reads), small(1 + len(reads)), {})  # removes the one that is read
        return original(path, *args)

    monkeypatch.setattr(jaxsrl.checkpoints.store, stage, read_late)
    step, arrays, _, problems = store.read_newest()
    assert (step, problems, reads) == (3, [], ["1", "2", "3"])
    np.testing.assert_array_equal(arrays["w"], small(3)["w"])


def test_a_checkpoint_replaced_while_read_is_not_called_damaged(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    path, original = store.save(1, small(1), {}), jaxsrl.checkpoints.store.verify_files
    monkeypatch.setattr(
        jaxsrl.checkpoints.store,
        "verify_files",
        lambda path, manifest, *options: (store.save(1, small(2), {}), original(path, manifest, *options)),
    )
    with pytest.raises(RemovedCheckpointError, match="removed or replaced while it was read"):
        load_in_use(path)
    monkeypatch.setattr(jaxsrl.checkpoints.store, "verify_files", original)
    np.testing.assert_array_equal(load_in_use(path)[0]["w"], small(2)["w"])


def test_a_link_to_nothing_does_not_hide_older_checkpoints(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, small(1), {})
    (tmp_path / "2").symlink_to(tmp_path / "nowhere")
    step, _, _, problems = store.read_newest()
    assert (step, len(problems)) == (1, 1)


def test_a_reader_gives_up_when_checkpoints_are_removed_at_once(tmp_path, monkeypatch):
    store, saved = CheckpointStore(tmp_path, keep=1), []
    store.save(1, small(1), {})
    original = jaxsrl.checkpoints.store.read_manifest

    def read_late(path):
        saved.append(path)
        store.save(1 + len(saved), small(1), {})
        return original(path)

    monkeypatch.setattr(jaxsrl.checkpoints.store, "read_manifest", read_late)
    monkeypatch.setattr(jaxsrl.checkpoints.store, "_READ_SECONDS", 0.2)
    with pytest.raises(UserError, match="removes its checkpoints .* faster than they can be read"):
        store.read_newest()
    assert saved


@pytest.mark.parametrize("content", ["[]", "3", '"text"', "{}", '{"files": {}, "schema": {}}', "\x00"])
def test_a_manifest_that_is_none_is_damage(tmp_path, content):
    path = CheckpointStore(tmp_path).save(1, small(1), {})
    (path / MANIFEST).write_text(content)
    with pytest.raises(CorruptCheckpointError, match=f"{MANIFEST} cannot be read"):
        load_checkpoint(path)


@pytest.mark.parametrize("place", ["missing", "a_file", "a_file/below"])
def test_what_is_not_even_a_directory_is_no_checkpoint(tmp_path, place):
    (tmp_path / "a_file").write_text("")
    with pytest.raises(UserError, match="is no checkpoint: expected a directory with"):
        load_checkpoint(tmp_path / place)


def test_leaves_of_another_prefix_are_left_alone():
    tree = {"w": jnp.ones(2)}
    both = flatten(tree, "learner") | flatten({"w": jnp.zeros(3)}, "behind")
    np.testing.assert_array_equal(unflatten(tree, both, "learner")["w"], [1, 1])


def test_no_more_than_twenty_leaves_are_listed():
    with pytest.raises(UserError) as refused:
        unflatten({f"layer{i:02}": jnp.zeros(1) for i in range(50)}, {}, "x")
    assert str(refused.value).count("missing") == 20


def test_metadata_that_were_changed_are_damage(tmp_path):
    path = CheckpointStore(tmp_path).save(1, small(1), {"agent_name": "ppo"})
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**manifest, "metadata": {"agent_name": "dqn"}}))
    with pytest.raises(CorruptCheckpointError, match="MANIFEST.json is not what was written"):
        load_checkpoint(path)


def test_the_manifest_says_which_versions_wrote_it(tmp_path):
    path = CheckpointStore(tmp_path).save(1, small(1), {})
    assert set(json.loads((path / MANIFEST).read_text())["versions"]) == {"jaxsrl", "jax", "numpy", "orbax-checkpoint"}


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced, renamed = set(), []
    fsync, rename = os.fsync, Path.rename

    def note_sync(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def note_rename(path, target):
        renamed.append({str(found) for found in path.rglob("*")} <= synced)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    CheckpointStore(tmp_path).save(1, small(1), {})
    assert renamed[-1]
    assert str(tmp_path) in synced


def test_save_syncs_the_parent_directory(tmp_path, monkeypatch):
    synced = set()
    fsync = os.fsync

    def note_sync(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    CheckpointStore(tmp_path / "checkpoints").save(1, small(1), {})
    assert str(tmp_path) in synced


def test_save_replaces_a_step_by_renaming(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(1, small(1), {})
    removed, rmtree = [], shutil.rmtree

    def note_removal(path, *args, **kwargs):
        removed.append(Path(path).name)
        return rmtree(path, *args, **kwargs)

    monkeypatch.setattr(shutil, "rmtree", note_removal)
    store.save(1, small(2), {})
    assert not [name for name in removed if name.isdigit()]
    np.testing.assert_array_equal(store.restore_newest()[1]["w"], small(2)["w"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]


def test_failed_replacement_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(1, small(1), {})
    rename = Path.rename

    def fails(path, target):
        if path.name == ".1.tmp":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(CheckpointSaveError, match="the newest is that of update 1"):
        store.save(1, small(2), {})
    monkeypatch.undo()
    np.testing.assert_array_equal(store.restore_newest()[1]["w"], small(1)["w"])


@pytest.mark.parametrize("then", ["restore", "save"])
def test_crash_between_renames_loses_no_checkpoint(tmp_path, then):
    store = CheckpointStore(tmp_path)
    store.save(1, small(1), {})
    (tmp_path / "1").rename(tmp_path / ".1.replaced.tmp")
    if then == "save":
        store.save(2, small(2), {})
        assert store.steps() == [1, 2]
    else:
        assert CheckpointStore(tmp_path).restore_newest()[0] == 1


def test_save_survives_failed_removal_of_old_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, small(1), {})
    rmtree = shutil.rmtree

    def fails(path, ignore_errors=False, **kwargs):
        if ignore_errors:
            return
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", fails)
    assert store.save(2, small(2), {}) == tmp_path / "2"
    assert store.steps() == [2]
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    store.save(3, small(3), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3"]  # it was tried again


def test_kill_during_removal_leaves_no_partial_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, small(1), {})

    def killed(path, *args, **kwargs):
        if (Path(path) / MANIFEST).is_file():
            (Path(path) / MANIFEST).write_text("")  # as far as it came
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        store.save(2, small(2), {})
    monkeypatch.undo()
    assert store.steps() == [2]
    assert store.restore_newest()[3] == []


def test_quarantine_names_are_unique_per_step(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, small(1), {})
    for number in range(3):
        (store.save(2, small(2), {}) / MANIFEST).write_text(f"damaged {number}")
        store.restore_newest()
        if number == 0:
            (tmp_path / "quarantine" / "3-0").mkdir()
        if number == 1:
            (tmp_path / "quarantine" / "3-0").rmdir()  # somebody has tidied up
    texts = sorted((path / MANIFEST).read_text() for path in (tmp_path / "quarantine").iterdir())
    assert texts == ["damaged 0", "damaged 1", "damaged 2"]
