"""Experience in checkpoints: its bytes, the memory and the disk that it takes, and what is left of older checkpoints."""

import os
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsrl.checkpoints import experience
from jaxsrl.checkpoints.experience import map_experience, write_experience
from jaxsrl.checkpoints.manifest import EXPERIENCE, CorruptCheckpointError, file_sha256
from jaxsrl.checkpoints.store import CheckpointStore, load_checkpoint

# 256 MiB of experience of a ring on the host or a device, three times; then the peak and the rest above it, in MiB.
SAVES = """
import resource, sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jaxsrl.checkpoints import experience
from jaxsrl.checkpoints.store import CheckpointStore
experience.PIECE_BYTES = 1 << 24
def resident(name):
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) >> 10
ring = np.random.default_rng(0).integers(0, 255, (256, 4, 1 << 18), np.uint8)
if sys.argv[2] == "device":
    ring = jax.block_until_ready(jax.jit(lambda x: x + jnp.uint8(1))(ring[:1])[jnp.zeros(256, jnp.int32)])
store = CheckpointStore(Path(sys.argv[1]))
store.save(0, {"learner.w": np.ones(3)}, {})  # Orbax and its threads are loaded
before = resident("VmRSS:")
Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
for step in range(1, 4):
    store.save(step, {"learner.w": np.ones(3), "replay.a": ring}, {})
print(resident("VmHWM:") - before, resident("VmRSS:") - before, len(store.steps()))
"""


def arrays():
    rng = np.random.default_rng(1)
    return {
        "replay.odd": rng.integers(0, 255, (13, 7), np.uint8),
        "replay.empty": np.zeros((0, 3), np.float32),
        "replay.scalar": np.int32(5),
        "replay.half": jnp.asarray(rng.normal(size=(40, 3)), jnp.bfloat16),
        "replay.strided": rng.normal(size=(5, 40)).T,
        "replay.unused": np.zeros((64, 64)),
        "replay.flags": rng.random((11, 2)) < 0.5,
    }


@pytest.mark.parametrize("piece", [1 << 26, 64, 1])
def test_arrays_come_back_to_the_bit(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(experience, "PIECE_BYTES", piece)
    saved = arrays()
    devices = Mesh(np.array(jax.devices()[:1]), "x")
    saved["replay.sharded"] = jax.device_put(
        np.arange(58.0).reshape(29, 2), NamedSharding(devices, PartitionSpec(None, "x"))
    )
    digest = write_experience(tmp_path / "file", saved)
    assert digest == file_sha256(tmp_path / "file")
    forms = {name: (np.shape(each), np.dtype(each.dtype)) for name, each in saved.items()}
    restored = map_experience(tmp_path / "file", forms)
    assert list(restored) == list(saved)
    for name, each in restored.items():
        assert (each.shape, each.dtype, each.tobytes()) == (*forms[name], np.asarray(saved[name]).tobytes())


def test_a_file_of_another_size_is_damage(tmp_path):
    write_experience(tmp_path / "file", {"replay.a": np.ones(3)})
    with pytest.raises(CorruptCheckpointError, match="expected 128 bytes by the shapes in the manifest, got 64"):
        map_experience(tmp_path / "file", {"replay.a": ((9,), np.dtype(float))})


def test_only_the_newest_checkpoint_keeps_experience(tmp_path):
    store, state = CheckpointStore(tmp_path), {"learner.w": np.ones(2)}
    for step in (1, 2, 3):
        store.save(step, {**state, "replay.a": np.full(5, step)}, {})
    assert [(tmp_path / str(step) / EXPERIENCE).exists() for step in (1, 2, 3)] == [False, False, True]
    restored, read = store.restore_newest(), store.read_newest()
    assert restored
    assert restored[1]["replay.a"].tolist() == [3] * 5
    assert set(load_checkpoint(tmp_path / "2")[0]) == {"learner.w"}
    assert read
    assert set(read[1]) == {"learner.w"}
    with open(tmp_path / "3" / EXPERIENCE, "r+b") as file:
        file.write(b"\1")
    older = store.restore_newest()
    assert older
    assert (older[0], set(older[1]), len(older[3])) == (2, {"learner.w"}, 1)


def test_unused_places_of_a_ring_take_no_disk(tmp_path):
    write_experience(tmp_path / "file", {"replay.a": np.zeros(8 << 20, np.uint8), "replay.b": np.ones(64, np.uint8)})
    assert os.stat(tmp_path / "file").st_blocks * 512 < 1 << 20
    assert os.stat(tmp_path / "file").st_size == (8 << 20) + 64


@pytest.mark.parametrize("memory", ["host", "device"])
def test_saves_take_little_memory_and_release_it(memory):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # disks may be slow
        command = [sys.executable, "-c", SAVES, directory, memory]
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    peak, rest, steps = map(int, out.split())
    assert peak < 180, f"peak {peak} MiB above what the process had"
    assert (rest < 90, steps) == (True, 3), f"{rest} MiB are not given back"
