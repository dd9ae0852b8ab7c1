"""Recording of all steps while a run trains: the files are the ring's slots, also after a resume and a kill."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.cli.commands.record import Record
from jaxsrl.datasets.dataset import find_damage, find_episodes, open_dataset
from jaxsrl.datasets.manifest import Manifest
from jaxsrl.datasets.writer import leaf_arrays
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.evaluation.record_replay import record_replay
from jaxsrl.experiment import Experiment
from jaxsrl.training.host_trainable import HostTrainable
from jaxsrl.training.step_recorder import open_writer
from tests.support.run_configs import run_config
from tests.unit.jaxsrl.datasets import test_datasets as steps_of_tests

ROWS, LENGTH = 8, 8
CARTPOLE = EnvConfig("CartPole-v1")
PPO = PPOConfig(num_epochs=1, num_minibatches=1)
DQN = DQNConfig(replay=ReplayConfig(batch_size=8, min_size=64, capacity=512))


def experiment(directory, agent=PPO, updates=6, env=CARTPOLE, **options):
    settings = {
        "name": "run",
        "directory": str(directory),
        "num_envs": ROWS,
        "rollout_length": LENGTH,
        "total_env_steps": updates * ROWS * LENGTH,
        "pool_num_workers": 2,
        "plan": "single_learner_fine",
        "record": str(directory / "set"),
        "eval_final_episodes": 0,
        **options,
    }
    return Experiment(env, agent, NetworkConfig(hidden_sizes=(8,)), run_config(**settings))


def slots_of(monkeypatch):
    """Arrays of the slots that the run sees, in their order."""
    seen, observe = [], HostTrainable._observe

    def note(self, slots):
        each = [leaf_arrays(slot) for slot in slots]
        seen.append({name: np.concatenate([one[name][:LENGTH] for one in each], axis=1) for name in each[0]})
        observe(self, slots)

    monkeypatch.setattr(HostTrainable, "_observe", note)
    return seen


ASYNCHRONOUS = {"learner_num_devices": 2, "learner_gradients": "asynchronous", "max_policy_lag": 2}
REUSED = {
    "learner_trajectory_buffer_size": 2,
    "learner_sample_reuse": 2,
    "max_policy_lag": 3,
    "learner_when_full": "drop_oldest",
}


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        ("single_learner_fine", {"max_policy_lag": 1}),
        pytest.param("serial", {}, marks=pytest.mark.slow),
        pytest.param("single_learner_coarse", {}, marks=pytest.mark.slow),
        pytest.param("multiple_learners", {"learner_num_devices": 2}, marks=pytest.mark.slow),
        pytest.param("central", {"learner_num_devices": 2}, marks=pytest.mark.slow),
        pytest.param("single_learner_fine", REUSED, marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_dataset_has_every_step_of_the_ring(tmp_path, monkeypatch, plan, changes):
    seen = slots_of(monkeypatch)
    experiment(tmp_path, plan=plan, **changes).train(quiet=True)
    dataset = open_dataset(tmp_path / "set")
    assert list(find_damage(tmp_path / "set")) == []
    steps = leaf_arrays(dataset.steps)
    for name in dataset.manifest.leaves():
        expected = np.concatenate([slot[name] for slot in seen])
        np.testing.assert_array_equal(steps[name][: len(expected)], expected)
    assert len(steps["reward"]) == LENGTH * len(seen) >= 6 * LENGTH
    episodes = find_episodes(dataset.steps)
    np.testing.assert_array_equal(episodes.lengths, episodes.returns)
    assert dataset.manifest.origin == {"agent": "ppo", "run": "run", "seed": 0, "first_step": 0}


def test_a_resumed_run_continues_its_dataset(tmp_path):
    for directory in ("whole", "parts"):
        (tmp_path / directory).mkdir()
    experiment(tmp_path / "whole").train(quiet=True)
    for updates in (2, 6):
        experiment(tmp_path / "parts", updates=updates).train(quiet=True)
    same_datasets(tmp_path / "whole" / "set", tmp_path / "parts" / "set")
    experiment(tmp_path / "parts", updates=8, record="").train(quiet=True)
    with pytest.raises(UserError, match=r"steps 0 to 48 of each row, and the run continues at step 64"):
        experiment(tmp_path / "parts", updates=9).train(quiet=True)


def test_episodes_that_cannot_go_on_are_not_recorded(tmp_path):
    vector = EnvConfig("CartPole-v1", suite="gymnasium_vector")
    experiment(tmp_path, updates=2, env=vector, plan="serial", checkpoint_interval_updates=1).train(quiet=True)
    before = dataclasses.asdict(open_dataset(tmp_path / "set").manifest)
    # Also the steps after the checkpoint stay.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "2")
    with pytest.raises(UserError, match="of 8 could not return to their state and are in others"):
        experiment(tmp_path, updates=3, env=vector, plan="serial").train(quiet=True)
    assert dataclasses.asdict(open_dataset(tmp_path / "set").manifest) == before
    assert list(find_damage(tmp_path / "set")) == []


def same_datasets(one, other):
    one, other = open_dataset(one), open_dataset(other)
    first, second = leaf_arrays(one.steps), leaf_arrays(other.steps)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.slow
def test_recording_changes_nothing_else(tmp_path):
    params = []
    for record in ("", str(tmp_path / "recorded" / "set")):
        directory = tmp_path / ("recorded" if record else "plain")
        directory.mkdir()
        params.append(experiment(directory, DQN, record=record).train(quiet=True).state.params)
    jax.tree.map(np.testing.assert_array_equal, *params)


SCRIPT = """
import sys
from pathlib import Path
from tests.integration.test_record_while_training import experiment
if __name__ == "__main__":
    experiment(Path(sys.argv[1]), updates=int(sys.argv[2]), checkpoint_interval_updates=5).train(quiet=True)
"""


@pytest.mark.slow
def test_a_killed_run_loses_no_step_of_its_dataset(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "train.py")]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen([*command, str(killed), "100000"], env=env)
    checkpoints = killed / "run" / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("[0-9]*"))) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    newest = max(int(path.name) for path in checkpoints.glob("[0-9]*"))
    total = newest + 7
    for directory in (killed, whole):
        subprocess.run([*command, str(directory), str(total)], env=env, check=True, timeout=300)
    same_datasets(whole / "set", killed / "set")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan": "device_only", "env": EnvConfig("CartPole-v1", suite="jax")}, "memory of one learner process"),
        ({"plan": "central", **ASYNCHRONOUS}, "memory of one learner process"),
        ({"record": "."}, "expected a new directory"),
    ],
)
def test_what_cannot_be_recorded_is_rejected(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        experiment(tmp_path, **changes).train(quiet=True)


def test_a_dataset_of_another_run_stays(tmp_path):
    experiment(tmp_path, updates=1).train(quiet=True)
    before = dataclasses.asdict(open_dataset(tmp_path / "set").manifest)
    with pytest.raises(UserError, match="expected a new directory, or the dataset of this run"):
        experiment(tmp_path, updates=1, name="other").train(quiet=True)
    assert dataclasses.asdict(open_dataset(tmp_path / "set").manifest) == before


def test_a_dataset_that_does_not_fit_stays(tmp_path):
    path, spec, rows = tmp_path / "set", steps_of_tests.SPEC, steps_of_tests.ROWS
    manifest = Manifest(spec, rows, steps_of_tests.EXTRAS, origin={"run": "run"})
    steps = steps_of_tests.random_steps(30)
    with open_writer(path, manifest, 8) as writer:
        for begin in range(0, 30, 10):
            writer.append(steps_of_tests.part(steps, begin, begin + 10))
            writer.commit()
    before = dataclasses.asdict(open_dataset(path).manifest)
    for step in (0, 23, 48):
        with pytest.raises(UserError, match=f"has steps 8 to 38 of each row, and the run continues at step {step}"):
            open_writer(path, manifest, step)
        assert dataclasses.asdict(open_dataset(path).manifest) == before
    with open_writer(path, manifest, 18) as writer:
        assert writer.num_steps == 10


@pytest.mark.slow
def test_a_new_run_replaces_no_dataset_of_its_name(tmp_path):
    experiment(tmp_path, updates=1).train(quiet=True)
    expected = leaf_arrays(open_dataset(tmp_path / "set").steps)
    # A run that was killed before its first checkpoint records again.
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    experiment(tmp_path, updates=1).train(quiet=True)
    shutil.rmtree(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(UserError, match="holds 8 steps of each row of an earlier run of that name"):
            experiment(tmp_path, updates=1).train(quiet=True)
    for name, array in leaf_arrays(open_dataset(tmp_path / "set").steps).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("capacity", [512, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("memory", ["device", pytest.param("host", marks=pytest.mark.slow)])
def test_a_replay_buffer_is_the_end_of_the_recording(tmp_path, memory, capacity):
    agent = dataclasses.replace(DQN, replay=dataclasses.replace(DQN.replay, capacity=capacity))
    experiment(tmp_path, agent, replay_memory=memory).train(quiet=True)
    path, origin = tmp_path / "run", {"run": "run"}
    replay = leaf_arrays(record_replay(load_agent(path), tmp_path / "replay", origin).steps)
    assert list(find_damage(tmp_path / "replay")) == []
    recorded = leaf_arrays(open_dataset(tmp_path / "set").steps)
    assert len(replay["reward"]) == min(capacity // ROWS, 6 * LENGTH)
    for name in replay:
        np.testing.assert_array_equal(replay[name], recorded[name][-len(replay[name]) :], err_msg=name)


def test_only_checkpoints_with_replay_have_one_to_record(tmp_path):
    experiment(tmp_path, updates=1).train(quiet=True)
    path = tmp_path / "run"
    with pytest.raises(UserError, match="has no replay buffer"):
        record_replay(load_agent(path), tmp_path / "replay", {})
    command = Record(path, tmp_path / "replay", replay=True, episodes=3)
    with pytest.raises(UserError, match="expected no episodes"):
        command.run()
