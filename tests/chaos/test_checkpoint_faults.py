"""Checkpoints under fire: killed while they are written, damaged afterwards. What comes back is what was written, to the bit."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxsrl.checkpoints.store import CheckpointStore

ROOT = Path(__file__).parents[2]
# A server that has everything loaded and no jax started, whose children can therefore save soon. A child saves the steps that
# follow the newest one until it is killed, some time after its first save was through. The server waits to be asked for the next.
SAVES = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from jaxsrl.checkpoints.store import CheckpointStore
import orbax.checkpoint
directory, draw = Path(sys.argv[1]), random.Random(0)
def arrays(step):
    rng = np.random.default_rng(step)
    return {"w": rng.normal(size=(64, 64)), "lengths": rng.integers(0, 9, 50)}
for _ in sys.stdin:
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        store = CheckpointStore(directory, keep=2)
        step = max(store.steps(), default=0)
        while True:
            step += 1
            store.save(step, arrays(step), {"step": step})
            os.write(writes, b".")
    os.close(writes)
    assert os.read(reads, 1) == b"."
    time.sleep(draw.random() * 0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reads)
    print("killed", flush=True)
"""


def saved_arrays(step):
    rng = np.random.default_rng(step)
    return {"w": rng.normal(size=(64, 64)), "lengths": rng.integers(0, 9, 50)}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_checkpoint_survives_kills_while_saving(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SAVES, str(tmp_path)]
    store, steps, unfinished = CheckpointStore(tmp_path, keep=2), [], 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    ) as server:
        for _ in range(200):
            server.stdin.write("next\n")
            assert server.stdout.readline() == "killed\n"
            unfinished += any(path.name.startswith(".") for path in tmp_path.iterdir())
            step, restored, metadata, problems = store.restore_newest()
            assert (metadata, problems) == ({"step": step}, [])
            for name, expected in saved_arrays(step).items():
                np.testing.assert_array_equal(restored[name], expected)
            steps.append(step)
        server.stdin.close()
    assert steps == sorted(set(steps))
    assert unfinished > 100, "the kills did not fall into saves"


def damage(path, draw):
    """Flips a bit of a random file, or cuts it short, or lengthens it; weighted by size as a failing disk is."""
    files = [file for file in path.rglob("*") if file.is_file() and file.stat().st_size]
    file = draw.choices(files, [found.stat().st_size for found in files])[0]
    content = bytearray(file.read_bytes())
    kind = draw.choice(["flip", "cut", "grow"])
    if kind == "flip":
        place = draw.randrange(len(content) * 8)
        content[place // 8] ^= 1 << place % 8
    elif kind == "cut":
        del content[draw.randrange(len(content)) :]
    else:
        content += bytes([draw.randrange(256)])
    file.write_bytes(content)
    return f"{kind} {file.name}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_checkpoint_falls_back_after_any_damage(tmp_path):
    draw, arrays = random.Random(1), {"w": np.random.default_rng(0).normal(size=(40, 40)), "n": np.arange(7)}
    store = CheckpointStore(tmp_path / "run")
    for step in (1, 2):
        store.save(step, arrays, {"step": step})
    shutil.copytree(tmp_path / "run" / "2", tmp_path / "whole")
    for _ in range(1000):
        what = damage(tmp_path / "run" / "2", draw)
        found = store.restore_newest()
        assert found is not None
        step, restored, _, problems = found
        assert (step, len(problems)) == (1, 1), what
        np.testing.assert_array_equal(restored["w"], arrays["w"])
        shutil.rmtree(tmp_path / "run" / "quarantine")
        shutil.copytree(tmp_path / "whole", tmp_path / "run" / "2")
