"""A sweep of tiny runs: killed, resumed, recorded and drawn."""

import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.config.files import read_config_file
from jaxsrl.config.run_config import RunConfig
from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.tune.trial import PRUNED, ReportReturns

FLAGS = ["--run.num-envs", "2", "--run.rollout-length", "16", "--agent.num-minibatches", "2", "--pool.num-workers", "1"]
FLAGS += ["--eval.final-episodes", "1", "--metrics.no-tensorboard", "--run.max-policy-lag", "0"]


def tune_command(directory, trials, env_steps):
    (directory / "space.toml").write_text("agent.learning_rate = {low = 1e-4, high = 1e-2, log = true}\n")
    command = [
        sys.executable,
        "-m",
        "jaxsrl.cli.main",
        "tune",
        "ppo_cartpole",
        "--space",
        str(directory / "space.toml"),
    ]
    command += ["--trials", str(trials), "--pruner", "none", "--directory", str(directory / "sweep"), "--json"]
    return [*command, *FLAGS, "--run.total-env-steps", str(env_steps), "--checkpoint.interval-updates", "5"]


def read_log(run):
    return (run / "log.txt").read_text() if (run / "log.txt").exists() else ""


def test_killed_sweep_resumes_its_trials(tmp_path):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    command, run = tune_command(tmp_path, 2, 9_600), tmp_path / "sweep" / "trial_000"
    process = subprocess.Popen(command, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while "checkpoint at" not in read_log(run):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()  # its trial is killed with it
        process.wait()
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert sorted(trial["trial"] for trial in trials) == [0, 1]
    assert {trial["state"] for trial in trials} == {"complete"}
    assert all(trial["env_steps"] >= 9_600 for trial in trials)
    assert "resumes" in read_log(run)
    best = max(trials, key=lambda trial: trial["return"])
    options = read_config_file(tmp_path / "sweep" / "best.yaml").options
    assert options["agent"]["learning_rate"] == best["agent.learning_rate"]
    assert "name" not in options["run"]
    _draw(tmp_path / "sweep", tmp_path / "sweep.png")


def _draw(directory, out):
    from jaxsrl.tune.draw import draw_sweep

    assert set(draw_sweep(directory, out)) == {"agent.learning_rate"}
    assert out.read_bytes().startswith(b"\x89PNG")


def test_tune_without_optuna_names_the_extra(monkeypatch):
    from jaxsrl.tune.study import import_optuna

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"jaxsrl\[tune\]"):
        import_optuna()


class FakeTrial:
    def __init__(self):
        self.reports = {}

    def report(self, value, step):
        assert step not in self.reports
        self.reports[step] = value

    def should_prune(self):
        return self.reports[max(self.reports)] < 5.0


def make_run(env_steps, mean, every=0, mode="greedy"):
    config = RunConfig(num_envs=10, rollout_length=10, total_env_steps=1000)
    stops = []
    return SimpleNamespace(
        config=SimpleNamespace(eval=SimpleNamespace(every=every, mode=mode), total_env_steps=config.total_env_steps),
        env_steps=env_steps,
        is_at_multiple_of=lambda steps: env_steps // steps > (env_steps - 100) // steps,
        episodes=lambda: {} if mean is None else {"episode/return_mean": mean},
        stop=stops.append,
        stops=stops,
    )


def test_callback_reports_training_returns_and_prunes():
    trial = FakeTrial()
    callback = ReportReturns(trial, 200, {1})
    stops = []
    for env_steps, mean in [(100, 9.0), (200, 9.0), (300, 9.0), (400, 8.0), (600, None), (800, 2.0), (1000, 1.0)]:
        run = make_run(env_steps, mean)
        callback.on_update(run)
        stops += [(env_steps, reason) for reason in run.stops]
    assert trial.reports == {2: 8.0, 4: 2.0, 5: 1.0}  # 1 was reported by an earlier process
    assert stops == [(800, PRUNED)]


def test_callback_reports_evaluations_instead():
    trial = FakeTrial()
    callback = ReportReturns(trial, 200, set())
    run = make_run(600, 1.0, every=200, mode="both")
    callback.on_update(run)
    for mode, mean in [("sample", 1.0), ("greedy", 7.0)]:
        callback.on_evaluation(run, Evaluation(4, 400, 400, mode, mean, 0.0, 0.0, 0.0, 0.0, 1, 0, 0.0))
    assert trial.reports == {2: 7.0}
    assert run.stops == []
