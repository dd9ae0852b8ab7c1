"""`jaxsrl train`: which file a name means, and that it runs as Python would run it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jaxsrl.cli.main
from envpool_bridge.errors import UserError
from jaxsrl.cli.find_experiment import read_summary

CHECKOUT = Path(__file__).resolve().parents[2]
PROBE = '''"""A probe. Run: never."""
import json, os, signal, sys, time
import beside

class Mine:
    pass

def told():
    return dict(name=__name__, argv=sys.argv, pid=os.getpid(), where=sys.path[0], kind=Mine.__module__, beside=beside.VALUE)

if __name__ == "__main__":
    print(json.dumps(told()), flush=True)
    if sys.argv[1:] == ["--wait"]:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
        print("ready", flush=True)
        time.sleep(60)
    sys.exit(7)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with an experiment of its own, `probe`, and one that has the name of ours."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "probe.py").write_text(PROBE)
    (folder / "beside.py").write_text("VALUE = 5\n")
    (folder / "ppo_cartpole.py").write_text('"""Mine.\n\nMore."""\n')
    (folder / "broken.py").write_text("def (")
    (folder / "_hidden.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return folder


def command(*arguments):
    code = "import sys; from jaxsrl.cli.main import main; main(sys.argv[1:])"
    return [sys.executable, "-c", code, "train", *arguments]


def environment():
    return {**os.environ, "PYTHONPATH": str(CHECKOUT)}


def told_by(*arguments):
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False, timeout=150)
    return json.loads(done.stdout), done.returncode, done.stderr


def test_an_experiment_runs_as_python_runs_its_file(folder):
    by_name, status, errors = told_by(*command("probe", "--a", "1", "--help", "x y"))
    by_python, python_status, _ = told_by(sys.executable, "experiments/probe.py", "--a", "1", "--help", "x y")
    assert (status, errors) == (python_status, "") == (7, "")
    assert by_name.pop("pid") != by_python.pop("pid")
    assert by_name == by_python
    assert by_name["kind"] == "__main__"  # where environment processes look a class up
    assert by_name["argv"] == ["experiments/probe.py", "--a", "1", "--help", "x y"]


def test_train_keeps_working_directory_from_shadowing_stdlib(folder, tmp_path):
    (tmp_path / "logging.py").write_text('raise ImportError("the working directory\'s")\n')
    interpreter, *rest = command("probe")
    _, status, errors = told_by(interpreter, "-P", *rest)  # -P: as the installed command starts
    assert (status, errors) == (7, "")


def test_signals_reach_the_experiment_itself(folder):
    with subprocess.Popen(
        command("experiments/probe.py", "--wait"), env=environment(), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(150) == 143


def listed(capsys):
    jaxsrl.cli.main.main(["train", "--list", "--json"])
    return json.loads(capsys.readouterr().out)


def test_train_lists_local_experiments_first(capsys, folder):
    found = listed(capsys)
    assert found["probe"] == {"file": "experiments/probe.py", "about": "A probe. Run: never."}
    assert found["ppo_cartpole"] == {"file": "experiments/ppo_cartpole.py", "about": "Mine."}
    assert found["sac_pendulum"]["file"] == str(CHECKOUT / "experiments" / "sac_pendulum.py")
    assert found["broken"]["about"] == ""
    assert "_hidden" not in found
    assert "__init__" not in found


def test_train_lists_each_experiment_once_with_description(capsys, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    found = listed(capsys)
    assert set(found) >= {path.stem for path in (CHECKOUT / "experiments").glob("[a-z]*.py")}
    assert all(about["about"] for about in found.values())
    assert found["ppo_cartpole"]["file"] == "experiments/ppo_cartpole.py"
    jaxsrl.cli.main.main(["train", "--list"])
    assert "PPO on CartPole-v1" in capsys.readouterr().out


def test_a_name_may_be_written_with_hyphens(capsys, folder, monkeypatch):
    ran = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: ran.append(arguments))
    jaxsrl.cli.main.main(["train", "ppo-cartpole", "--list"])
    (arguments,) = ran
    assert arguments[-2:] == ["experiments/ppo_cartpole.py", "--list"]


def test_a_plan_is_shown_of_an_experiment_by_its_name(capsys, folder, monkeypatch):
    def refuse(path, flags):
        raise UserError(f"asked for {path} with {flags}")

    monkeypatch.setattr("jaxsrl.experiment.load_experiment", refuse)
    with pytest.raises(SystemExit):
        jaxsrl.cli.main.main(["plan", "probe", "--run.seed", "1"])
    assert capsys.readouterr().err == "error: asked for experiments/probe.py with ('--run.seed', '1')\n"


def test_first_line_of_missing_file_is_empty(tmp_path):
    assert read_summary(tmp_path / "nowhere.py") == ""


def test_help_before_and_after_experiment_name(capsys):
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["train", "--help"])
    assert ended.value.code == 0
    assert "--list" in capsys.readouterr().out


@pytest.mark.slow
def test_train_with_environment_defined_in_file(tmp_path):
    file = tmp_path / "own.py"
    source = (CHECKOUT / "experiments" / "ppo_cartpole.py").read_text()
    own = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from envpool_bridge.envs.gymnasium_env import GymnasiumSource

class Own(gymnasium.Wrapper):
    pass

def make():
    return gymnasium.wrappers.TimeLimit(Own(CartPoleEnv()), 50)
"""
    source = source.replace("EXPERIMENT =", own + "\n\nEXPERIMENT =", 1)
    file.write_text(source.replace('EnvConfig("CartPole-v1")', "GymnasiumSource(make)"))
    flags = ["--run.total-env-steps", "20000", "--eval.final-episodes", "4", "--run.num-envs", "16"]
    first = subprocess.run(
        command(str(file), *flags),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert first.returncode == 0, first.stderr
    assert "evaluated 4 greedy episodes" in first.stdout
    longer = command(str(file), *flags, "--run.total-env-steps", "4000000")
    with subprocess.Popen(longer, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("resumes runs/") for line in lines)
        next(lines)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert any(line.startswith("stopped by SIGTERM") for line in lines)
        assert process.wait(150) == 143


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 75)])
def test_signals_during_imports_have_the_status_of_a_run(folder, number, status):
    # The handler of an exception that jax swallows must not decide whether the run ends.
    (folder / "importing.py").write_text(
        'import time\ntry:\n    print("importing", flush=True)\n    time.sleep(60)\nexcept BaseException:\n    time.sleep(60)\n'
    )
    with subprocess.Popen(
        command("importing"), env=environment(), stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        os.killpg(process.pid, number)
        assert process.wait(timeout=50) == status
