"""Training of missing results, with a stand-in for training that works in steps and saves when it is stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jaxsrl.results.train_missing
from envpool_bridge.errors import UserError
from jaxsrl.results.record import read_results
from jaxsrl.results.task_list import TaskRuns
from jaxsrl.results.train_missing import select_tasks, train_missing
from tests.support.signal_in_wait import signal_in_a_wait

ROOT = Path(__file__).parents[4]

# Like `jaxsrl train`: resumes, saves at SIGTERM, ends with a finished run directory. Ten steps of --work seconds.
TRAINER = """
import signal, sys, time
from pathlib import Path
flags = dict(zip(sys.argv[3::2], sys.argv[4::2]))
run = Path(flags["--run.directory"], flags["--run.name"])
state = run.with_suffix(".steps")
run.parent.mkdir(parents=True, exist_ok=True)
steps = int(state.read_text()) if state.exists() else 0
def stop(number, frame):
    state.write_text(str(steps))
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, stop)
def log(line):
    with open(run.with_suffix(".log"), "a") as file:
        file.write(f"{{line}}\\n")
log(f"from {{steps}}")
if flags.get("--fail") == flags["--run.seed"]:
    sys.exit(3)
while steps < 10:
    time.sleep(float(flags["--work"]))
    steps += 1
    log("step")
sys.path.insert(0, {root!r})
from tests.unit.jaxsrl.results.runs import PROVENANCE, save_finished_run
command = " ".join(["jaxsrl", *sys.argv[1:-4]])
save_finished_run(run, [{{**PROVENANCE, "command": command}}], env_id=flags["--env.id"], seed=int(flags["--run.seed"]))
"""


@pytest.fixture
def trainer(tmp_path):
    path = tmp_path / "trainer.py"
    path.write_text(TRAINER.format(root=str(ROOT)))
    return (sys.executable, str(path))


def train(tmp_path, trainer, tasks, hours=0.0):
    lines = []
    return train_missing(tasks, tmp_path / "results", tmp_path / "runs", hours, lines.append, trainer), lines


def starts(tmp_path, name):
    lines = (tmp_path / "runs" / f"{name}.log").read_text().splitlines()
    return [line for line in lines if line.startswith("from")]


def has_stepped(tmp_path):
    log = tmp_path / "runs" / "A-v0-ppo-s0.log"
    return log.exists() and "step" in log.read_text()


def test_train_missing_trains_each_seed_once(tmp_path, trainer):
    task = TaskRuns("A-v0", "ppo", "--work 0", seeds=2, preset="mine")
    assert train(tmp_path, trainer, [task])[0] == 0
    results = read_results(tmp_path / "results")
    assert [(result.task, result.preset, result.seed) for result in results] == [
        ("A-v0", "mine", 0),
        ("A-v0", "mine", 1),
    ]
    assert results[1].command == "jaxsrl train ppo --env.id A-v0 --work 0 --run.seed 1"
    assert train(tmp_path, trainer, [task]) == (0, [])
    assert starts(tmp_path, "A-v0-mine-s0") == starts(tmp_path, "A-v0-mine-s1") == ["from 0"]


def test_train_missing_goes_on_after_a_failure(tmp_path, trainer):
    status, lines = train(tmp_path, trainer, [TaskRuns("A-v0", "ppo", "--work 0 --fail 0", seeds=2)])
    assert status == 1
    assert [result.seed for result in read_results(tmp_path / "results")] == [1]
    assert "A-v0-ppo-s0 failed with exit status 3" in lines


def test_train_missing_stops_in_time_and_resumes(tmp_path, trainer, monkeypatch):
    task = TaskRuns("A-v0", "ppo", "--work 1", seeds=2)
    with monkeypatch.context() as patch:
        patch.setattr(jaxsrl.results.train_missing, "_is_past", lambda deadline: has_stepped(tmp_path))
        assert train(tmp_path, trainer, [task], hours=1.0)[0] == 0
    assert read_results(tmp_path / "results") == []
    steps = int((tmp_path / "runs" / "A-v0-ppo-s0.steps").read_text())
    assert 0 < steps < 10
    assert not (tmp_path / "runs" / "A-v0-ppo-s1.log").exists()
    assert train(tmp_path, trainer, [TaskRuns("A-v0", "ppo", "--work 0", seeds=1)])[0] == 0
    assert starts(tmp_path, "A-v0-ppo-s0") == ["from 0", f"from {steps}"]


def test_a_signal_during_a_wait_needs_no_lock(tmp_path, trainer, monkeypatch):
    def interrupt_late(deadline):
        if has_stepped(tmp_path):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(jaxsrl.results.train_missing, "_is_past", interrupt_late)
    with signal_in_a_wait():
        assert train(tmp_path, trainer, [TaskRuns("A-v0", "ppo", "--work 1")])[0] == 128 + signal.SIGTERM


def test_train_missing_keeps_to_the_hours(tmp_path, trainer):
    begin = time.monotonic()
    assert train(tmp_path, trainer, [TaskRuns("A-v0", "ppo", "--work 60")], hours=1.0 / 3600)[0] == 0
    assert 1.0 < time.monotonic() - begin < 50.0
    assert read_results(tmp_path / "results") == []


PROGRAM = """
import sys
from pathlib import Path
from jaxsrl.results.task_list import TaskRuns
from jaxsrl.results.train_missing import train_missing
place = Path(sys.argv[1])
task = TaskRuns("A-v0", "ppo", "--work 1", seeds=2)
sys.exit(train_missing([task], place / "results", place / "runs", 0.0, print, sys.argv[2:]))
"""


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def trainers(tmp_path):
    """Processes of the stand-in, from the list of all processes."""
    lines = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if str(tmp_path / "trainer.py") in line and "train_missing" not in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signal_stops_training_and_leaves_no_process(tmp_path, trainer, number):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), *trainer], env=environment)
    wait_until(lambda: has_stepped(tmp_path))
    process.send_signal(number)
    status = process.wait(60)
    wait_until(lambda: not trainers(tmp_path))
    assert status == (-9 if number == signal.SIGKILL else 128 + number)
    assert (tmp_path / "runs" / "A-v0-ppo-s0.steps").exists() == (number != signal.SIGKILL)
    assert not (tmp_path / "runs" / "A-v0-ppo-s1.log").exists()


def test_train_missing_goes_on_after_a_run_of_another_task(tmp_path, trainer):
    other = TaskRuns("A-v0", "ppo", "--work 0 --env.id B-v0", seeds=1)
    status, lines = train(tmp_path, trainer, [other, TaskRuns("C-v0", "ppo", "--work 0", seeds=1)])
    assert status == 1
    assert any("A-v0-ppo-s0 has no result: " in line and "expected seed 0 of A-v0" in line for line in lines)
    assert [result.task for result in read_results(tmp_path / "results")] == ["C-v0"]


def test_select_tasks_takes_tasks_and_settings():
    one, two, three = (TaskRuns("A", "ppo"), TaskRuns("A", "sac"), TaskRuns("B", "ppo", preset="ppo_small"))
    tasks = [one, two, three]
    assert select_tasks(tasks, ()) == tasks
    assert select_tasks(tasks, ("A",)) == [one, two]
    assert select_tasks(tasks, ("sac", "B")) == [two, three]
    with pytest.raises(UserError, match="named 'dqn': expected one of A, ppo, sac, B, ppo_small"):
        select_tasks(tasks, ("dqn",))
