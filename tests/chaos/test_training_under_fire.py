"""Real training while its workers are killed: it learns all the same, and the auditor finds nothing wrong."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.shared_names import names_left

ROOT = Path(__file__).parents[2]
# What the experiment's own command would do, with workers that may die any number of times and journals of what they do.
TRAIN = """
import dataclasses, logging, sys
from functools import partial
import jaxsrl.training.host_trainable as host_trainable
from envpool_bridge.options import SupervisorOptions
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.experiment import cli
from tests.support.run_configs import run_config
directory, env_steps, plan = sys.argv[1], int(sys.argv[2]), sys.argv[3]
logging.basicConfig(format="%(message)s")
logging.getLogger("envpool_bridge").setLevel(logging.INFO)  # it tells how soon a worker steps again
options = SupervisorOptions(max_restarts=1_000_000, max_backoff_seconds=0.0)
host_trainable.CollectorConfig = partial(host_trainable.CollectorConfig, journal="tests.support.journal:" + directory + "/journals")
sizes = {"num_envs": 128, "rollout_length": 32, "total_env_steps": env_steps, "metrics_interval_seconds": 0.2}
run = run_config(name="run", directory=directory, plan=plan, pool_supervision=options, **sizes)
cli(dataclasses.replace(EXPERIMENT, run=run), [])
"""


def members(session):
    """Living processes of a session: their ids and parents."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if entry.name.isdigit():
                state, parent, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its_session) == session and state != "Z":
                    found[int(entry.name)] = int(parent)
    return found


def workers_of(main):
    """Children of the main process's fork server, which are keepers, and theirs: workers, and the one that waits to replace one."""
    living = members(main)
    servers = {pid for pid, parent in living.items() if parent == main}
    return [pid for pid, parent in living.items() if servers & {parent, living.get(parent)}]


def train(directory, env_steps, plan_name):
    path = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", TRAIN, str(directory), str(env_steps), plan_name]
    with (directory / "output").open("w") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **path}, start_new_session=True
        )


def end(process):
    for pid in members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def kill_workers_until_it_ends(process, generator, mean_seconds, output, seconds):
    """Kills a random worker, or the spare one, now and then, from the first record on; returns how many."""
    kills, deadline = 0, time.monotonic() + seconds
    while "env steps/s" not in output.read_text():
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while process.poll() is None:
        assert time.monotonic() < deadline, f"still running after {kills} kills"
        time.sleep(generator.expovariate(1.0 / mean_seconds))
        workers = workers_of(process.pid)
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(generator.choice(workers), signal.SIGKILL)
                kills += 1
    return kills


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("plan_name", "seconds", "mean_seconds", "least_kills"),
    [("single_learner_fine", 300.0, 0.55, 100), ("single_learner_coarse", 60.0, 8.0, 2)],
)
def test_ppo_learns_cartpole_while_its_workers_are_killed(plan_name, seconds, mean_seconds, least_kills, tmp_path):
    (tmp_path / "speed").mkdir()
    (tmp_path / "fire").mkdir()
    env_steps = max(1_500_000, int(seconds * steps_per_second(tmp_path / "speed", plan_name)))
    found = train_under_fire(tmp_path / "fire", plan_name, env_steps, mean_seconds)
    print(json.dumps(found))  # with how soon workers stepped again, which depends on the machine
    assert found["restarts"] >= least_kills
    assert found["mean_return"] >= 475.0


@pytest.mark.slow
def test_a_short_training_under_fire_loses_nothing(tmp_path):
    found = train_under_fire(tmp_path, "single_learner_fine", 100_000, 0.2)
    assert found["restarts"] >= 1
    assert found["recoveries"] >= 1


def steps_per_second(directory, plan_name):
    """How fast this machine trains while nobody kills anything."""
    process = train(directory, 300_000, plan_name)
    try:
        assert process.wait(300.0) == 0, (directory / "output").read_text()
    finally:
        end(process)
    lines = (directory / "run" / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    return (last["env_steps"] - first["env_steps"]) / (last["wall_seconds"] - first["wall_seconds"])


def train_under_fire(directory, plan_name, env_steps, mean_seconds):
    """Trains while workers are killed; fails unless all ends well, nothing is left and the auditor finds nothing wrong.

    Returns:
        What the auditor has found, and: kills, restarts (a spare process that is killed needs none), seconds under fire, how
        soon workers stepped again [ms], and the mean return.
    """
    names = names_left()
    process = train(directory, env_steps, plan_name)
    output, began = directory / "output", time.monotonic()
    try:
        kills = kill_workers_until_it_ends(process, random.Random(0), mean_seconds, output, 1000.0)
        seconds, printed = time.monotonic() - began, output.read_text()
        assert process.returncode == 0, printed
        assert members(process.pid) == {}
    finally:
        end(process)
    assert names_left() <= names
    command = [sys.executable, "-m", "tests.support.journal_audit", str(directory / "journals")]
    audited = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(audited.stdout)
    assert found["clean"], found
    restarts = printed.count("It is restarted")
    recoveries = [float(text) for text in re.findall(r"steps again, ([0-9.]+) ms", printed)]
    # A replacement has a journal if it stepped; on a busy machine many are killed before they do.
    assert len(recoveries) <= found["deaths"] <= restarts
    percentiles = np.percentile(recoveries, [50, 99]).round(1).tolist() if recoveries else [None, None]
    evaluated = json.loads((directory / "run" / "eval.json").read_text())
    return {
        **found,
        "kills": kills,
        "restarts": restarts,
        "seconds": round(seconds, 1),
        "recoveries": len(recoveries),
        "recovery_p50_ms": percentiles[0],
        "recovery_p99_ms": percentiles[1],
        "mean_return": evaluated["mean_return"],
    }
