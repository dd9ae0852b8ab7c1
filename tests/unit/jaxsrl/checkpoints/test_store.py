"""Checkpoints come back to the bit, or not at all."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.checkpoints import store
from jaxsrl.checkpoints.schema import validate_match
from jaxsrl.checkpoints.store import (
    MANIFEST,
    CheckpointStore,
    CorruptCheckpointError,
    flatten,
    leaf_forms,
    load_checkpoint,
    sign_manifest,
    unflatten,
)
from jaxsrl.training.run_state import validate_learner


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "learner.params['w']": rng.normal(size=(64, 64)).astype(np.float32),
        "learner.num_updates": np.array(seed, np.int32),
        "episodes/recent": np.zeros((0, 2)),
        "flags": rng.random(9) < 0.5,
    }


def assert_equal(got, expected):
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name], value)


def test_arrays_and_metadata_come_back_to_the_bit(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(3, arrays(3), {"why": "test"})
    step, got, metadata, problems = store.restore_newest()
    assert (step, metadata, problems) == (3, {"why": "test"}, [])
    assert_equal(got, arrays(3))


def test_only_the_newest_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in (1, 2, 10):
        store.save(step, arrays(step), {})
    assert store.steps() == [2, 10]


def largest_file(directory: Path) -> Path:
    return max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip_a_bit(checkpoint):
    path = largest_file(checkpoint)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(checkpoint):
    os.truncate(largest_file(checkpoint), 10)


def remove(checkpoint):
    largest_file(checkpoint).unlink()


def plant(checkpoint):
    (checkpoint / "state" / "evil.pkl").write_bytes(b"x")


def break_manifest(checkpoint):
    (checkpoint / MANIFEST).write_text('{"files": ')


@pytest.mark.parametrize("damage", [flip_a_bit, truncate, remove, plant, break_manifest])
def test_restore_newest_quarantines_damage_and_uses_the_previous(tmp_path, damage):
    store = CheckpointStore(tmp_path)
    store.save(1, arrays(1), {})
    damage(store.save(2, arrays(2), {}))
    with pytest.raises(CorruptCheckpointError):
        load_checkpoint(tmp_path / "2")
    step, got, _, problems = store.restore_newest()
    assert step == 1
    assert_equal(got, arrays(1))
    assert len(problems) == 1
    assert list((tmp_path / "quarantine").iterdir())
    assert store.steps() == [1]


def test_restore_newest_raises_if_all_are_damaged(tmp_path):
    store = CheckpointStore(tmp_path / "none")
    assert store.restore_newest() is None
    flip_a_bit(store.save(1, arrays(), {}))
    with pytest.raises(UserError, match="no checkpoint of this run is whole"):
        store.restore_newest()


def test_a_path_that_is_no_checkpoint_says_what_one_is(tmp_path):
    with pytest.raises(UserError, match=f"expected a directory with {MANIFEST}"):
        load_checkpoint(tmp_path)


def test_another_version_is_refused(tmp_path):
    path = CheckpointStore(tmp_path).save(1, arrays(), {})
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(sign_manifest({**manifest, "format": 99}))
    with pytest.raises(UserError, match="format 99"):
        load_checkpoint(path)


def test_a_tree_of_another_shape_is_refused_leaf_by_leaf():
    tree = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(4, jnp.int32)}
    flat = flatten(tree, "learner")
    restored = unflatten(tree, flat, "learner")
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    with pytest.raises(UserError) as refused:
        unflatten({"a": jnp.zeros((2, 5)), "c": jnp.zeros(1)}, flat, "learner")
    for line in (
        "learner['a']: expected float32[2, 5], got float32[2, 3]",
        "learner['c']: expected",
        "learner['b']: not",
    ):
        assert line in str(refused.value)


def test_validate_sees_the_schema_before_arrays_are_read(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path)
    store.save(1, arrays(1), {})
    store.save(2, {"learner.params['w']": np.zeros((64, 65), np.float32), "replay.rest": np.zeros(1)}, {})
    wanted = leaf_forms({"params": {"w": np.zeros((64, 64), np.float32)}}, "learner")
    asked = []

    def require(found):
        asked.append(found)
        validate_match({"learner.params['w']": wanted["learner['params']['w']"]}, found, "learner")

    monkeypatch.setattr("jaxsrl.checkpoints.store._read_arrays", lambda *arguments: pytest.fail("the arrays were read"))
    with pytest.raises(UserError, match=r"\['w'\]: expected float32\[64, 64\], got float32\[64, 65\]$"):
        store.restore_newest(validate=require)
    assert [sorted(found) for found in asked] == [["learner.params['w']", "replay.rest"]]
    assert store.steps() == [1, 2]  # it is whole: nothing is set aside, and no older one taken
    monkeypatch.undo()
    flip_a_bit(tmp_path / "2")
    with pytest.raises(UserError, match=r"learner.num_updates: not expected"):
        store.restore_newest(validate=require)
    assert [len(found) for found in asked] == [2, 4]  # a damaged one is not asked for


def test_resume_with_another_network_fails_by_shapes():
    def agent_of(hidden):
        spec = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
        return make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(hidden,)))

    key = jax.random.key(0)
    schema = leaf_forms(jax.eval_shape(agent_of(4).init, key), "learner") | {
        "environments/x": ((1,), np.dtype("int32"))
    }
    validate_learner(agent_of(4), key, schema)
    with pytest.raises(UserError, match=r"made for another network[^$]*expected float32\[5\], got float32\[4\]"):
        validate_learner(agent_of(5), key, schema)


def test_an_optimizer_state_survives():
    params = {"w": jnp.ones((3, 2))}
    state = optax.adam(1e-3).init(params)
    again = unflatten(state, flatten(state, "x"), "x")
    assert jax.tree.structure(again) == jax.tree.structure(state)


SAVES = """
import sys, numpy as np
from pathlib import Path
from jaxsrl.checkpoints.store import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]), keep=3)
for step in range(1, 1000):
    store.save(step, {"w": np.full((300, 300), step, np.float32)}, {})
    print(step, flush=True)
"""


@pytest.mark.parametrize(
    "delay", [0.013, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.005, 0.021, 0.029))]
)
def test_a_kill_in_the_middle_of_a_save_leaves_the_finished_ones(tmp_path, delay):
    process = subprocess.Popen(
        [sys.executable, "-c", SAVES, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    finished = [int(process.stdout.readline()) for _ in range(4)][-1]
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    finished = max([finished, *(int(line) for line in process.stdout)])
    process.wait()
    process.stdout.close()
    step, got, _, problems = CheckpointStore(tmp_path).restore_newest()
    assert problems == []
    assert step in {finished, finished + 1}  # renamed, perhaps not yet reported
    np.testing.assert_array_equal(got["w"], np.full((300, 300), step, np.float32))


def test_a_checkout_that_is_not_installed_saves(tmp_path, monkeypatch):
    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    monkeypatch.setattr(store, "_read_versions", store._read_versions.__wrapped__)
    path = CheckpointStore(tmp_path).save(1, arrays(), {})
    assert_equal(load_checkpoint(path)[0], arrays())
