"""Machines and directories that are against us: too little shared memory, a full disk, nothing may be written, planted files."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxsrl.checkpoints.schema as checkpoint_form
import jaxsrl.checkpoints.store as checkpoint
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.checkpoints.store import MANIFEST, CheckpointStore, CorruptCheckpointError, load_checkpoint, sign_manifest

ROOT = Path(__file__).parents[2]
ARRAYS = {"w": np.arange(2000.0), "n": np.arange(3)}
IN_A_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
# A pool whose ring needs some 20 MiB, and one that needs little.
POOL = """
import sys
from envpool_bridge.shm.layout import PoolShape
from tests.chaos.counting import begin, check, collect, make_pool
shape = PoolShape(1, 1, 1, int(sys.argv[1]), 64, 2)
with make_pool(shape) as pool:
    begin(pool)
    check(collect(pool, 3))
print("done")
"""
SAVE = """
import sys
from pathlib import Path
import numpy as np
from jaxsrl.checkpoints.store import CheckpointSaveError, CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
arrays = {"w": np.random.default_rng(0).normal(size=200_000)}
step = 0
try:
    while step < 20:
        store.save(step + 1, arrays, {})
        step += 1
        store._keep = 100
except CheckpointSaveError as error:
    print(error)
assert 0 < step < 20, "a small disk must be full at some time"
assert not [path for path in Path(sys.argv[1]).iterdir() if path.name.startswith(".")], "what was begun is taken away"
found, restored, _, problems = store.restore_newest()
assert (found, problems) == (step, [])
np.testing.assert_array_equal(restored["w"], arrays["w"])
print("done")
"""

OPEN_DIRECTORY = (
    "import sys; from pathlib import Path; from jaxsrl.checkpoints.run_directory import RunDirectory; "
    "RunDirectory(Path(sys.argv[1]))"
)


def can_mount():
    """Whether this user may mount in a namespace of his own."""
    command = [*IN_A_NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


needs_mounts = pytest.mark.skipif(
    not can_mount(), reason="no mount namespaces here: `unshare --user --mount` is refused"
)


def run_with_mount(place, size, code, *arguments):
    """Runs Python code where `place` is a file system of its own, of that size."""
    mount = f'mount -t tmpfs -o size={size} none {place} && exec "$0" "$@"'
    command = [*IN_A_NAMESPACE, "sh", "-c", mount, sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150, check=False)


@needs_mounts
def test_pool_rejects_too_small_shared_memory():
    # Without a reservation the first write would end the process with SIGBUS.
    result = run_with_mount("/dev/shm", "4m", POOL, 8192)
    assert result.returncode == 1, result
    assert "SegmentTooLargeError: the trajectory ring needs" in result.stderr
    assert "--shm-size" in result.stderr
    assert "done" not in result.stdout


@needs_mounts
def test_pool_fits_into_four_mib_of_shared_memory():
    result = run_with_mount("/dev/shm", "4m", POOL, 4)
    assert (result.returncode, result.stdout) == (0, "done\n"), result


@pytest.mark.slow
@needs_mounts
def test_full_disk_loses_only_the_checkpoint_that_did_not_fit(tmp_path):
    result = run_with_mount(tmp_path, "8m", SAVE, tmp_path / "checkpoints")
    assert result.returncode == 0, result
    assert "could not be written" in result.stdout
    assert "the newest is that of update" in result.stdout


@needs_mounts
def test_read_only_directory_is_rejected_with_advice(tmp_path):
    result = run_with_mount(tmp_path, "1m,ro", OPEN_DIRECTORY, tmp_path / "run")
    assert result.returncode == 1
    assert "Read-only file system; choose --run.directory" in result.stderr


@pytest.mark.slow
@needs_mounts
def test_read_only_checkpoints_can_be_read_but_not_added(tmp_path):
    CheckpointStore(tmp_path).save(1, ARRAYS, {})
    code = (
        "import sys, numpy as np; from pathlib import Path; from jaxsrl.checkpoints.store import *\n"
        "store = CheckpointStore(Path(sys.argv[1]))\n"
        "assert store.restore_newest()[0] == 1\n"
        "try: store.save(2, {'n': np.arange(3)}, {})\n"
        "except CheckpointSaveError as error: print(error)\n"
    )
    remount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$0" "$@"'
    command = [*IN_A_NAMESPACE, "sh", "-c", remount, sys.executable, str(tmp_path), "-c", code, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150, check=False)
    assert result.returncode == 0, result.stderr
    assert "Read-only file system" in result.stdout
    assert "the newest is that of update 1" in result.stdout


def test_second_run_in_a_directory_is_rejected(tmp_path):
    with RunDirectory(tmp_path / "run") as first:
        command = [sys.executable, "-c", OPEN_DIRECTORY, str(first.path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        second = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=150, check=False)
        assert second.returncode == 1
        assert f"is in use by process {os.getpid()} on " in second.stderr
        first.log("goes on")
    RunDirectory(tmp_path / "run").close()


# --- planted in a checkpoint
@pytest.fixture
def saved(tmp_path):
    """A checkpoint directory, and an older one beside it."""
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, ARRAYS, {"step": 1})
    return store.save(2, ARRAYS, {"step": 2})


def falls_back(path):
    """Restores, as training does; fails unless the damaged checkpoint is set aside and the one before is used."""
    step, restored, _, problems = CheckpointStore(path.parent).restore_newest()
    assert (step, len(problems)) == (1, 1)
    np.testing.assert_array_equal(restored["w"], ARRAYS["w"])
    assert not path.exists()
    assert list((path.parent / "quarantine").iterdir())
    return problems[0]


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def resealed(path, change):
    """Writes a manifest that verifies, as somebody would who knows how."""
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    (path / MANIFEST).write_text(sign_manifest(manifest))


@pytest.mark.parametrize("name", ["state/params.pkl", "extra.npy", "state/_METADATA.pkl"])
def test_checkpoint_rejects_an_added_pickle(saved, tmp_path, name):
    (saved / name).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    assert "files differ from the manifest" in falls_back(saved)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("target", ["state/_METADATA", "MANIFEST.json"])
def test_checkpoint_never_loads_a_replaced_pickle(saved, tmp_path, target):
    (saved / target).write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    if target != MANIFEST:
        digest = checkpoint.file_sha256(saved / target)
        resealed(saved, lambda manifest: manifest["files"].update({target: digest}))
    falls_back(saved)
    assert not (tmp_path / "ran").exists()


def test_checkpoint_rejects_a_link_out_of_the_directory(saved, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    (saved / "state" / "linked").symlink_to(secret)
    digest = checkpoint.file_sha256(secret)
    resealed(saved, lambda manifest: manifest["files"].update({"state/linked": digest}))
    assert "is a link" in falls_back(saved)
    assert secret.read_text() == "of somebody else"


def test_checkpoint_rejects_a_linked_directory(saved, tmp_path):
    shutil.move(saved / "state", tmp_path / "elsewhere")
    (saved / "state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptCheckpointError, match="is a link"):
        load_checkpoint(saved)


def test_manifest_rejects_names_outside_the_directory(saved):
    resealed(saved, lambda manifest: manifest["files"].update({"../1/MANIFEST.json": "0" * 64}))
    assert "files differ" in falls_back(saved)


@pytest.mark.parametrize("shape", [[2**60], [2**31, 2**31], [-1], ["x"], [0, 2**70], [0] * 40, "w"])
@pytest.mark.parametrize("name", ["w", "planted"])
def test_manifest_with_an_absurd_shape_reserves_no_memory(saved, name, shape):
    form = {"shape": shape, "dtype": "float64"}
    resealed(saved, lambda manifest: manifest["schema"].update({name: form}))
    assert "shape" in falls_back(saved)


@pytest.mark.parametrize("dtype", ["object", "O", "no such", 7, "V99999999"])
def test_manifest_rejects_a_non_numeric_dtype(saved, dtype):
    resealed(saved, lambda manifest: manifest["schema"]["w"].update({"dtype": dtype}))
    assert "dtype" in falls_back(saved)


def test_checkpoint_rejects_arrays_larger_than_memory(saved, monkeypatch):
    monkeypatch.setattr(checkpoint_form, "free_host_bytes", lambda: 1000)
    with pytest.raises(UserError, match=r"the arrays need 0\.0 GiB of memory"):
        CheckpointStore(saved.parent).restore_newest()
    assert saved.exists()


def test_manifest_with_missing_parts_is_rejected(saved):
    for name in ("files", "schema", "metadata"):
        manifest = (saved / MANIFEST).read_text()
        resealed(saved, lambda manifest, name=name: manifest.update({name: ["something", "else"]}))
        with pytest.raises(CorruptCheckpointError, match=f"the manifest's {name}"):
            load_checkpoint(saved)
        (saved / MANIFEST).write_text(manifest)


def test_manifest_with_other_json_is_rejected(saved):
    for text in ("[]", "null", "3", '{"format": 2}', "[" * 100_000):
        (saved / MANIFEST).write_text(text)
        with pytest.raises((CorruptCheckpointError, UserError)):
            load_checkpoint(saved)
