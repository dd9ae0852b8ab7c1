"""The checkpoint of process 0 at every learner process, without processes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import jaxsrl.cluster.learners.coordinator
import jaxsrl.run_plan
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.cluster.learners.coordinator import ProcessCoordinator
from jaxsrl.training.run_checkpoints import RunCheckpoints
from tests.support.run_configs import run_config


class Words:
    """What processes leave for each other, and the bytes that they broadcast."""

    def __init__(self):
        self.texts, self.data = {}, None

    def broadcast(self, data, length):
        self.data = data if data is not None else self.data
        assert len(self.data) == length
        return self.data


def process(number, words, directory):
    """The checkpoints of a process, which it restores with process 0."""
    processes = SimpleNamespace(
        is_main=number == 0,
        process_id=number,
        num_processes=2,
        send=words.texts.__setitem__,
        wait_for=words.texts.__getitem__,
        wait_at_barrier=lambda: None,
    )
    config = run_config(
        num_envs=2,
        rollout_length=2,
        total_env_steps=36,
        checkpoint_max_to_keep=3,
        distributed_wait_seconds=60,
    )
    run_directory = SimpleNamespace(path=directory, checkpoints=directory, log=lambda line: None)
    setup = SimpleNamespace(config=config, directory=run_directory, log=lambda line: None)
    checkpoints = RunCheckpoints(setup, None, ProcessCoordinator(processes, config))
    checkpoints._validate_fit = lambda forms: None
    checkpoints._select = lambda arrays, metadata: {**arrays, "metadata": metadata}
    return checkpoints


@pytest.fixture
def words(monkeypatch):
    found = Words()
    monkeypatch.setattr(jaxsrl.cluster.learners.coordinator, "broadcast", found.broadcast)
    return found


def test_every_process_restores_the_checkpoint_of_process_0(tmp_path, words):
    metadata = {"experiment": {"env": {"id": "E-v0"}}, "env_steps": 28}
    CheckpointStore(tmp_path / "main").save(7, {"w": np.arange(3.0)}, metadata)
    main = process(0, words, tmp_path / "main").restore()
    other = process(1, words, tmp_path / "empty").restore()
    np.testing.assert_array_equal(other["w"], np.arange(3.0))
    assert set(other) == set(main)
    assert other["metadata"] == main["metadata"] == metadata


def test_no_process_restores_where_process_0_has_nothing(tmp_path, words):
    CheckpointStore(tmp_path / "other").save(7, {"w": np.arange(3.0)}, {})
    assert process(0, words, tmp_path / "main").restore() is None
    assert process(1, words, tmp_path / "other").restore() is None


def test_what_process_0_rejects_every_process_rejects(tmp_path, words):
    (CheckpointStore(tmp_path / "main").save(7, {"w": np.arange(3.0)}, {}) / "MANIFEST.json").write_text("damaged")
    for number, directory in enumerate(("main", "other")):
        with pytest.raises(UserError, match="no checkpoint of this run is whole"):
            process(number, words, tmp_path / directory).restore()
    assert "no checkpoint" in json.loads(next(iter(words.texts.values())))


def test_jax_starts_no_device_before_the_processes_have_joined(monkeypatch):
    called = []

    class JoinedError(Exception):
        pass

    def joins(config):
        called.append("join")
        raise JoinedError

    monkeypatch.setattr(jaxsrl.run_plan, "learner_processes", joins)
    monkeypatch.setattr(jaxsrl.run_plan, "enable_program_cache", lambda *_: called.append("keep"))
    monkeypatch.setattr(jaxsrl.run_plan, "add_agent_fragments", lambda plan, *_: plan)
    monkeypatch.setattr(jaxsrl.run_plan, "spec_to_dict", lambda spec: {})
    config = run_config(num_envs=2, rollout_length=4, directory=".", name="run")
    plan = SimpleNamespace(num_rows=2, shape=SimpleNamespace(rollout_length=4))
    monkeypatch.setattr(jaxsrl.run_plan, "make_env", lambda made: made)
    agent, spec = SimpleNamespace(name="agent"), SimpleNamespace(env_id="E-v0")
    with pytest.raises(JoinedError):
        jaxsrl.run_plan.run(plan, agent, None, config, experiment={}, spec=spec)
    assert called == ["join"]
