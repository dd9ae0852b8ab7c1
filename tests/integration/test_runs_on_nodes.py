"""Managers whose runs are on nodes of a local Ray cluster: equal results, lost nodes, signals."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxsrl.cli.main import main
from jaxsrl.cluster.node_processes import NodeLimits
from jaxsrl.cluster.ray.token import token_of
from jaxsrl.tune.node_runs import TOKEN, connected_nodes, train_on
from jaxsrl.tune.pbt import PBTConfig
from jaxsrl.tune.population import STATE, Population, PopulationConfig
from tests.integration.ray_marks import RAY_MARKS

ray = pytest.importorskip("ray")

pytestmark = RAY_MARKS
ROOT = Path(__file__).parents[2]
FLAGS = ["--run.num-envs", "2", "--run.rollout-length", "16", "--agent.num-minibatches", "2", "--pool.num-workers", "1"]
FLAGS += ["--eval.final-episodes", "2", "--metrics.no-tensorboard", "--checkpoint.interval-updates", "5"]
SPACE = {"agent.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}
ENV_STEPS, LONG = 960, 6_400  # a long run gets a signal before its end


@pytest.fixture(scope="module")
def cluster():
    from jaxsrl.cluster.ray.local_cluster import LocalCluster

    with contextlib.closing(LocalCluster(2, cores_per_node=1)) as started:
        yield started


@pytest.fixture(scope="module")
def environment(cluster):
    """Environment of processes that join the cluster as one that is there."""
    address = ray.get_runtime_context().gcs_address
    joined = {"RAY_ADDRESS": address, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **token_of(cluster.directory), **joined}


def population_command(directory, runs_on, env_steps=ENV_STEPS, rounds=2):
    directory.mkdir(exist_ok=True)
    (directory / "space.json").write_text(json.dumps(SPACE))
    command = [sys.executable, "-m", "jaxsrl.cli.main", "population", "ppo_cartpole", "--members", "2", "--at-once"]
    command += ["2", "--rounds", str(rounds), "--env-steps", str(env_steps), "--share", "0.5", "--json"]
    command += ["--space", str(directory / "space.json"), "--directory", str(directory / "runs"), "--runs-on", runs_on]
    return [*command, *FLAGS]


def history(directory):
    return json.loads((directory / STATE).read_text())["history"]


def runs_in(directory):
    """Returns the processes of runs in a directory, with their parents."""
    listed = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if entry.name.isdigit() and "--run.directory" in words and str(directory) in words:
                listed[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return listed


def wait_until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def has_checkpoint(directory):
    logs = [run / "log.txt" for run in sorted(directory.glob("round000_member0?"))]
    return len(logs) == 2 and all(log.exists() and "checkpoint at" in log.read_text() for log in logs)


def small_population(directory, experiment, train):
    """Returns one round of two long members."""
    rule = PBTConfig(share=0.5)
    config = PopulationConfig(str(experiment), SPACE, 2, 1, LONG, rule, flags=tuple(FLAGS))
    return Population(directory, config, lambda line: None, train)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """History of one round of two long members, trained here."""
    directory = tmp_path_factory.mktemp("here")
    done = subprocess.run(
        population_command(directory, "here", LONG, rounds=1), cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return history(directory / "runs")


def test_a_population_on_nodes_is_the_same(tmp_path, environment):
    for runs_on in ("here", "auto"):
        command = population_command(tmp_path / runs_on, runs_on)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
    assert done.stderr.count(" runs on node ") == 4
    assert history(tmp_path / "auto" / "runs") == history(tmp_path / "here" / "runs")
    assert not (tmp_path / "auto" / "runs" / TOKEN).exists()


def test_a_member_whose_worker_dies_ends_the_same(tmp_path, cluster, expected):
    directory, lines = tmp_path / "runs", []
    directory.mkdir()

    def kill_one():
        wait_until(lambda: has_checkpoint(directory))
        run, worker = sorted(runs_in(directory).items())[0]
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: run not in runs_in(directory), 10.0)  # the kernel has killed the run with it
        lines.append("killed")

    thread = threading.Thread(target=kill_one)
    limits = NodeLimits(lease_seconds=10.0)
    with connected_nodes("auto", directory, 2, lines.append, limits) as nodes:
        population = small_population(
            directory, ROOT / "experiments" / "ppo_cartpole.py", train_on(nodes, 2, lines.append)
        )
        thread.start()
        assert population.run() == 0
    thread.join()
    assert "killed" in lines
    assert [line for line in lines if "is lost" in line], lines
    assert sum("resumes" in (directory / f"round000_member0{number}" / "log.txt").read_text() for number in (0, 1)) == 1
    assert history(directory) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_manager_leaves_no_member(tmp_path, environment, expected, number):
    command, runs = population_command(tmp_path, "auto", LONG, rounds=1), tmp_path / "runs"
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: has_checkpoint(runs) or process.poll() is not None)
        assert len(runs_in(runs)) == 2
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    is_kill = number == signal.SIGKILL
    assert process.returncode == (-9 if is_kill else 128 + number), errors
    wait_until(lambda: not runs_in(runs), 30.0)
    if not is_kill:
        assert number.name in (runs / "round000_member00" / "log.txt").read_text()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert history(runs) == expected


def test_a_sweep_on_nodes_is_the_same(tmp_path, environment):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    (tmp_path / "space.json").write_text(json.dumps(SPACE))
    trials = {}
    for runs_on in ("here", "auto"):
        command = [sys.executable, "-m", "jaxsrl.cli.main", "tune", "ppo_cartpole", "--space", f"{tmp_path}/space.json"]
        command += ["--trials", "2", "--pruner", "none", "--directory", f"{tmp_path}/{runs_on}", "--json"]
        command += ["--runs-on", runs_on, "--run.total-env-steps", str(ENV_STEPS), *FLAGS]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        trials[runs_on] = json.loads(done.stdout)["trials"]
    assert trials["auto"] == trials["here"]


@pytest.mark.parametrize("manager", ["psro", "league"])
def test_a_game_solver_on_nodes_is_the_same(tmp_path, environment, manager):
    """Equal returns of the games of all policies need equal parameters."""
    pytest.importorskip("pgx")
    count = {"psro": "--iterations", "league": "--rounds"}[manager]
    flags = ["--env.suite", "pgx", "--env.id", "kuhn_poker", "--env.kwargs.two_agents", "true", "--plan", "device_only"]
    flags += [count, "2", "--env-steps", "4096", "--games", "64", "--eval.final-episodes", "0"]
    policies = {}
    for runs_on in ("here", "auto"):
        command = [sys.executable, "-m", "jaxsrl.cli.main", manager, "ppo", "--directory", f"{tmp_path}/{runs_on}"]
        command += ["--json", "--runs-on", runs_on, *flags]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        policies[runs_on] = json.loads(done.stdout.splitlines()[-1])["policies"]
    assert " runs on node " in done.stderr
    assert policies["auto"] == policies["here"]


def test_more_runs_than_cores_of_nodes_are_rejected(tmp_path, cluster, capsys):
    command = population_command(tmp_path, "auto")[3:]
    command[command.index("--at-once") + 1] = "3"
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "one for each of the 2 cores of the nodes, got 3" in " ".join(capsys.readouterr().err.split())
