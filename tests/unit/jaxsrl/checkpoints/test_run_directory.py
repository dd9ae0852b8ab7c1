"""A run's directory: one process at a time, and one configuration for ever."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from envpool_bridge.errors import UserError
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.checkpoints.run_directory import LOCK, LOG, NUM_UPDATES, RunDirectory, read_json, write_json
from jaxsrl.config.run_config import MAY_CHANGE
from jaxsrl.config.serialization import to_json


def saved(agent_name="ppo", **run):
    experiment = to_json(EXPERIMENT)
    experiment["run"] |= run
    return {"agent_name": agent_name, "experiment": experiment, "env_spec": {"env_id": "CartPole-v1"}}


def claim(path, config):
    with RunDirectory(path) as directory:
        directory.validate(config)
        directory.record(config, {"plan": "serial"})


def test_the_second_holder_is_refused_naming_the_first(tmp_path):
    with RunDirectory(tmp_path / "run"):
        with pytest.raises(UserError) as refused:
            RunDirectory(tmp_path / "run")
        holder = f"process {os.getpid()} on {socket.gethostname()}, started 20"
        assert f"{tmp_path / 'run'} is in use by {holder}" in str(refused.value)
        # The refused one must neither free the lock nor overwrite who holds it.
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            RunDirectory(tmp_path / "run")
    RunDirectory(tmp_path / "run").close()


HOLDS = """
import sys
from pathlib import Path
from jaxsrl.checkpoints.run_directory import RunDirectory
directory = RunDirectory(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_no_lock(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"  # pyright: ignore
    with pytest.raises(UserError, match=f"in use by process {process.pid} on "):
        RunDirectory(tmp_path / "run")
    process.kill()
    process.communicate()
    with RunDirectory(tmp_path / "run") as directory:
        assert f"process {os.getpid()} on " in (directory.path / LOCK).read_text()
        assert str(process.pid) not in (directory.path / LOCK).read_text().split()


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of jax, if another test has imported it
def test_a_forked_process_does_not_hold_the_lock(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, b"forked")
        signal.pause()
    try:
        os.read(reader, 6)
        with pytest.raises(UserError, match="in use"):
            RunDirectory(tmp_path / "run")
        directory.close()
        RunDirectory(tmp_path / "run").close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_closing_twice_is_closing(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.close()
    directory.close()


def test_unwritable_directory_names_the_flag(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the run directory .*: .*; choose --run.directory"):
        RunDirectory(tmp_path / "file" / "run")


def test_a_new_directory_takes_the_configuration(tmp_path):
    claim(tmp_path / "run", saved())
    assert read_json(tmp_path / "run" / "config.json") == saved()
    claim(tmp_path / "run", saved())


CHANGES = {
    "run.name": "run",  # "" before: the directory identifies the run
    "run.total_env_steps": 5,
    "run.gradient_steps": 5,
    "run.record": "sets/steps",
    "run.eval.final_episodes": 3,
    "run.eval.every": 1000,
    "run.checkpoint.keep_every": 500,
    "run.checkpoint.models_to_keep": 1,
    "run.eval.episodes": 2,
    "run.eval.mode": "both",
    "run.eval.env_kwargs": '{"frame_skip": 2}',
    "run.eval.max_rows": 4,
    "run.eval.agents": "hunter_*",
    "run.eval.processes": 2,
    "run.max_hours": 1.5,
    "run.eval.levels": 3,
    "run.eval.seeds": [1, 2],
    "run.eval.stage": 1,
    "run.eval.max_episode_steps": 100,
    "run.target_return": 475.0,
    "run.plateau_env_steps": 5000,
    "run.seeds": 3,
    "run.seeds_at_once": 2,
    "run.seed_learning_rates": [1e-4, 3e-4, 1e-3],
    "run.seed_entropy_coefs": [0.0, 0.01, 0.1],
    "run.plan": "serial",
    "run.pool.num_workers": 4,
    "run.pool.lanes_per_worker": 1,
    "run.pool.workers_per_lane": 2,
    "run.max_policy_lag": 0,
    "run.learner.when_full": "drop_oldest",
    "run.learner.trajectory_buffer_size": 4,
    "run.learner.sample_reuse": 2,
    "run.inference.batching": "merged",
    "run.learner.num_devices": 2,
    "run.inference.platform": "cpu",
    "run.inference.num_devices": 2,
    "run.inference.num_servers": 2,
    "run.learner.num_replicas": 2,
    "run.learner.gradients": "asynchronous",
    "run.learner.max_gradient_staleness": 2,
    "run.machine.num_cpu_devices": 4,
    "run.stall_timeout_seconds": 60.0,
    "run.directory": "elsewhere",
    "run.checkpoint.interval_updates": 7,
    "run.checkpoint.max_to_keep": 9,
    "run.metrics.interval_seconds": 0.5,
    "run.checkpoint.include_replay": False,
    "run.checkpoint.replay_episodes": False,
    "run.replay.memory": "host",
    "run.replay.prepare_devices": 1,
    "run.replay.prepare_lag": 1,
    "run.learner.max_nonfinite_updates": 3,
    "run.learner.on_nonfinite": "roll_back",
    "run.shutdown_timeout_seconds": 20.0,
    "run.pool.supervision.max_restarts": 2,
    "run.pool.supervision.window_seconds": 9.0,
    "run.pool.supervision.max_backoff_seconds": 1.0,
    "run.pool.supervision.step_timeout_seconds": 30.0,
    "run.pool.supervision.start_timeout_seconds": 40.0,
    "run.pool.supervision.min_alive_fraction": 0.9,
    "run.pool.supervision.bad_env_output": "drop_episode",
    "run.pool.supervision.keep_spare": False,
    "run.checkpoint.partial_restore": True,
    "run.checkpoint.accept_changed_code": True,
    "run.machine.disable_cpu_idle": True,
    "run.cluster.address": "local",
    "run.cluster.num_hosts": 2,
    "run.cluster.num_inference_servers": 1,
    "run.cluster.placement": "pack",
    "run.cluster.host_memory_gib": 0.5,
    "run.cluster.placement_timeout_seconds": 5,
    "run.distributed.coordinator": "host:1",
    "run.distributed.num_processes": 2,
    "run.distributed.local_devices": "0",
    "run.distributed.process_id": 1,
    "run.distributed.start_seconds": 7,
    "run.distributed.wait_seconds": 8,
    "run.distributed.lost_seconds": 9,
    "run.metrics.tensorboard": False,
    "run.metrics.wandb": True,
    "run.metrics.wandb_project": "another",
    "run.metrics.wandb_entity": "somebody",
    "run.metrics.prometheus_port": 9000,
    "run.metrics.prometheus_address": "0.0.0.0",
}


def test_all_changes_that_are_allowed_are_tried_below():
    assert set(CHANGES) == MAY_CHANGE


@pytest.mark.parametrize("path", CHANGES)
def test_an_allowed_change_passes_and_is_what_the_file_then_says(tmp_path, path):
    claim(tmp_path / "run", saved())
    changed = saved()
    *places, name = path.split(".")
    section = changed["experiment"]
    for place in places:
        section = section[place]
    assert section[name] != CHANGES[path]
    section[name] = CHANGES[path]
    claim(tmp_path / "run", changed)
    assert read_json(tmp_path / "run" / "config.json") == changed


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("seed", 1, "run.seed: 0 -> 1"),
        ("num_envs", 64, "run.num_envs: 128 -> 64"),
        ("rollout_length", 16, "run.rollout_length: 32 -> 16"),
    ],
)
def test_what_changes_a_step_is_refused_and_the_file_stays(tmp_path, name, value, line):
    claim(tmp_path / "run", saved())
    with pytest.raises(UserError) as refused:
        claim(tmp_path / "run", saved(total_env_steps=5, **{name: value}))
    assert line in str(refused.value)
    assert "run.total_env_steps" not in str(refused.value)
    assert "choose another --run.name" in str(refused.value)
    assert read_json(tmp_path / "run" / "config.json") == saved()


def test_options_newer_than_the_run_must_have_their_defaults(tmp_path):
    older = saved()
    for part, name in (("agent", "dual_clip"), ("run", "curriculum"), ("env", "kwargs")):
        del older["experiment"][part][name]
    del older["experiment"]["run"]["pool"]["workers_per_lane"]
    claim(tmp_path / "run", older)
    with RunDirectory(tmp_path / "run", EXPERIMENT) as directory:
        directory.validate(saved())
        other = saved()
        other["experiment"]["agent"]["dual_clip"] = 3.0
        with pytest.raises(UserError, match=r"agent\.dual_clip: None -> 3\.0"):
            directory.validate(other)
    with RunDirectory(tmp_path / "run") as directory, pytest.raises(UserError, match=r"env\.kwargs: None -> "):
        directory.validate(saved())


def test_options_newer_than_a_run_without_an_experiment(tmp_path):
    config = {"agent_name": "ppo", "experiment": {"run": to_json(EXPERIMENT.run)}, "env_spec": {}}
    older = {**config, "experiment": {"run": {**config["experiment"]["run"]}}}
    del older["experiment"]["run"]["level_replay"]
    claim(tmp_path / "run", older)
    with RunDirectory(tmp_path / "run", {"run": EXPERIMENT.run}) as directory:
        directory.validate(config)


def test_record_returns_changes_and_writes_config_and_plan(tmp_path):
    claim(tmp_path / "run", {**saved(), NUM_UPDATES: 4})
    with RunDirectory(tmp_path / "run") as directory:
        directory.validate(saved(plan="serial"))
        assert read_json(directory.path / "config.json") == {**saved(), NUM_UPDATES: 4}  # nothing has been restored yet
        changed = directory.record({**saved(plan="serial"), NUM_UPDATES: 8}, {"plan": "another"})
        assert read_json(directory.path / "plan.json") == {"plan": "another"}
        assert directory.record({**saved(plan="serial"), NUM_UPDATES: 8}, {"plan": "another"}) == ""
    schedules = "schedules over the run take 8 updates instead of 4"
    assert changed == f"changed: run.plan: 'single_learner_fine' -> 'serial', {schedules}"


def test_every_difference_is_listed_at_once(tmp_path):
    claim(tmp_path / "run", saved())
    other = saved("vtrace", seed=3)
    other["experiment"]["agent"]["discount"] = 0.5
    with pytest.raises(UserError) as refused:
        claim(tmp_path / "run", other)
    for line in ("agent.discount: 0.98 -> 0.5", "run.seed: 0 -> 3", "agent: 'ppo' -> 'vtrace'"):
        assert f"\n  {line}\n" in str(refused.value)


def test_checkpoints_without_their_configuration_are_not_resumed(tmp_path):
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    with RunDirectory(tmp_path) as run, pytest.raises(UserError, match="has checkpoints and no config.json"):
        run.validate(saved())


def test_a_broken_configuration_file_is_named(tmp_path):
    claim(tmp_path / "run", saved())
    (tmp_path / "run" / "config.json").write_text('{"agent_name": ')
    with pytest.raises(UserError, match=r"cannot read .*config\.json"):
        claim(tmp_path / "run", saved())


def test_a_reader_never_sees_half_a_file(tmp_path):
    path, done = tmp_path / "data.json", threading.Event()
    write_json(path, [0] * 20_000)

    def write():
        for value in range(1, 40):
            write_json(path, [value] * 20_000)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    reads = 0
    while not done.is_set() or not reads:
        data = json.loads(path.read_text())
        assert data == [data[0]] * 20_000
        reads += 1
    thread.join()
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "data.json"
    write_json(path, 1)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_json(path, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["data.json"]
    assert json.loads(path.read_text()) == 1


def test_the_log_grows_by_lines_with_their_time(tmp_path):
    for line in ("begins", "complete"):
        with RunDirectory(tmp_path / "run") as directory:
            directory.log(line)
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == ["begins", "complete"]
    assert all(line.startswith("20") for line in lines)


def test_warnings_of_a_run_are_in_its_log(tmp_path):
    own, other = logging.getLogger("jaxsrl.cluster"), logging.getLogger("somebody")
    with RunDirectory(tmp_path / "run") as directory:
        own.warning("host %d on node %s is lost", 3, "a")
        other.warning("not ours")
    own.warning("after the run")
    (line,) = (directory.path / LOG).read_text().splitlines()
    assert line.endswith(" host 3 on node a is lost")


def test_add_provenance_appends_what_differs(tmp_path):
    with RunDirectory(tmp_path / "run") as directory:
        for commit in ("a", "a", "b", "a"):
            directory.add_provenance({"commit": commit})
    assert (tmp_path / "run/log.txt").read_text().count("another version of the code: commit: ") == 2
    assert read_json(tmp_path / "run" / "provenance.json") == [{"commit": "a"}, {"commit": "b"}, {"commit": "a"}]
