"""Tasks of managers on nodes: order, failures, signals, and errors of `--runs-on`."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

import jaxsrl
from envpool_bridge.errors import UserError
from jaxsrl.cluster import node_processes
from jaxsrl.cluster.hosts import command_host
from jaxsrl.machine.run_tasks import Task
from jaxsrl.tune.node_runs import TOKEN, connected_nodes, train_on
from jaxsrl.tune.run_trials import run_trials
from jaxsrl.tune.runs_on import RunsOn
from jaxsrl.tune.study import RESULT, Sweep, open_study, save_sweep, trial_name
from jaxsrl.tune.trial import train_trial
from tests.support.node_engine import NodeEngine

SAVES = "import signal, sys; signal.signal(15, lambda *_: (print('saved'), sys.exit(143))); print('ready', flush=True);"


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(node_processes, "_CALL_SECONDS", 0.0)
    monkeypatch.setattr(node_processes, "POLL_SECONDS", 0.01)


def task(directory, name, code):
    return Task(name, [sys.executable, "-S", "-c", code], directory / f"{name}.txt")


def wait_for(path):
    deadline = time.monotonic() + 20
    while not (path.exists() and "ready\n" in path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tasks_run_on_nodes_and_report_their_ends(tmp_path):
    lines = []
    train = train_on(NodeEngine().processes(tmp_path), 2, lines.append)
    assert train([task(tmp_path, name, "print(1)") for name in "abc"]) == 0
    assert sorted(line.split(":")[0] for line in lines) == sorted(
        [f"{name} {what}" for name in "abc" for what in ("starts", "is complete")]
    )
    assert not lines[2].startswith("c starts: ")  # only two at once


def test_a_failed_task_stops_the_others(tmp_path):
    lines = []
    fails = f"import os, time\nwhile os.path.getsize({str(tmp_path / 'a.txt')!r}) < len('ready '): time.sleep(0.01)\nsys.exit(3)"
    tasks = [task(tmp_path, "a", SAVES + "signal.pause()"), task(tmp_path, "b", "import sys\n" + fails)]
    assert train_on(NodeEngine().processes(tmp_path), 2, lines.append)([*tasks, task(tmp_path, "c", "")]) == 3
    assert (tmp_path / "a.txt").read_text() == "ready\nsaved\n"
    assert "b ended with exit status 3" in lines
    assert not (tmp_path / "c.txt").exists()


def test_a_stop_signal_lets_tasks_save(tmp_path):
    engine = NodeEngine()
    train = train_on(engine.processes(tmp_path), 1, lambda line: None)

    def stop():
        wait_for(tmp_path / "a.txt")
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert train([task(tmp_path, "a", SAVES + "signal.pause()"), task(tmp_path, "b", "")]) == 128 + signal.SIGTERM
    thread.join()
    assert (tmp_path / "a.txt").read_text() == "ready\nsaved\n"
    assert len(engine.remotes) == 1


def test_an_error_of_a_node_stops_the_others_first(tmp_path, monkeypatch):
    monkeypatch.setattr(command_host, "_SEE_SECONDS", 0.0)
    nodes = NodeEngine().processes(tmp_path)
    started = []

    class Nodes:
        def start(self, each):
            if started:
                wait_for(tmp_path / "a.txt")
                (tmp_path / TOKEN).write_text("of another file system")
            started.append(nodes.start(each))
            return started[-1]

    with pytest.raises(UserError, match="does not see"):
        train_on(Nodes(), 2, lambda line: None)([task(tmp_path, name, SAVES + "signal.pause()") for name in "ab"])
    assert (tmp_path / "a.txt").read_text() == "ready\nsaved\n"


def test_a_sweep_that_is_stopped_ignores_later_errors(tmp_path):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    sweep = Sweep("x.py", {"agent.learning_rate": {"low": 1e-4, "high": 1e-2}}, (), "none", "random", seed=3)
    save_sweep(tmp_path, sweep)
    nodes = NodeEngine().processes(tmp_path)

    def start(each):
        process = nodes.start(each)
        (tmp_path / TOKEN).write_text("of another file system")  # the next start is an error
        if len(nodes._processes) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_host, "_SEE_SECONDS", 0.0)
        assert run_trials(tmp_path, sweep, 2, 2, lambda line: None, start) == 128 + signal.SIGTERM
    assert [trial.state.name for trial in open_study(tmp_path, sweep).get_trials()] == ["RUNNING"] * 2


def test_a_lost_trial_with_a_result_is_not_trained_again(tmp_path):
    result = tmp_path / trial_name(3) / RESULT
    result.parent.mkdir()
    result.write_text('{"is_pruned": true, "value": 1.0, "env_steps": 10}\n')
    before = result.read_text()
    assert train_trial(tmp_path, 3) == ""  # the sweep itself is not read
    assert result.read_text() == before


def test_this_machine_needs_no_nodes(tmp_path):
    with connected_nodes("here", tmp_path, 1, lambda line: None) as nodes:
        assert nodes is None
    assert not (tmp_path / TOKEN).exists()


@pytest.mark.parametrize("runs_on", ["auto", "local"])
def test_nodes_without_ray_name_the_extra(tmp_path, monkeypatch, runs_on):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(UserError, match=r"--runs-on needs Ray, which is not installed: pip install \"jaxsrl\[ray\]\""),
        connected_nodes(runs_on, tmp_path, 1, lambda line: None),
    ):
        pass
    assert not (tmp_path / TOKEN).exists()


def test_nodes_without_a_cluster_are_rejected(tmp_path, monkeypatch):
    def init(**options):
        raise ConnectionError("there is none")

    ray = SimpleNamespace(init=init, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with (
        pytest.raises(UserError, match=r"--runs-on auto found no Ray cluster to join \(there is none\)"),
        connected_nodes("auto", tmp_path, 1, lambda line: None),
    ):
        pass
    assert not (tmp_path / TOKEN).exists()


def test_a_second_local_cluster_names_the_flag_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    message = "--runs-on local starts a cluster, but this process is connected to one: use --runs-on auto"
    with pytest.raises(UserError, match=message), connected_nodes("local", tmp_path, 1, lambda line: None):
        pass
    assert not (tmp_path / TOKEN).exists()


def test_the_places_of_runs_are_named_once():
    names = ", ".join(f'"{place}"' for place in get_args(RunsOn))
    package = Path(jaxsrl.__file__).parent
    assert [path.name for path in package.rglob("*.py") if names in path.read_text()] == ["runs_on.py"]


def test_a_trial_finds_modules_next_to_its_experiment(monkeypatch, tmp_path):
    """Workers take over the path, and unpickle environments of such modules."""

    def make_experiment(options):
        raise ImportError(sys.path[0])

    sweep = SimpleNamespace(experiment=str(tmp_path / "mine.py"), parse_space=dict, make_experiment=make_experiment)
    study = SimpleNamespace(get_trials=lambda deepcopy: [SimpleNamespace(number=0, params={})])
    monkeypatch.setattr("jaxsrl.tune.trial.read_sweep", lambda directory: sweep)
    monkeypatch.setattr("jaxsrl.tune.trial.open_study", lambda directory, sweep: study)
    monkeypatch.setattr("jaxsrl.tune.trial.import_optuna", lambda: None)
    monkeypatch.setattr("jaxsrl.tune.trial.trial_options", lambda space, params: {})
    monkeypatch.setattr("sys.path", [*sys.path])
    with pytest.raises(ImportError, match=str(tmp_path)):
        train_trial(tmp_path, 0)
