"""A sweep of tiny runs: killed, resumed, recorded and drawn."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.cli.main import main
from jaxsrl.config.files import read_config_file
from jaxsrl.config.parts import EvalConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import load_experiment
from jaxsrl.machine.resources import Resources
from jaxsrl.metrics.evaluations import Evaluation
from jaxsrl.tune import run_trials as module
from jaxsrl.tune.managed_runs import hold, validate_start
from jaxsrl.tune.report import read_results
from jaxsrl.tune.space import Range
from jaxsrl.tune.study import RESULT, Sweep, open_study, save_sweep, trial_name
from jaxsrl.tune.trial import PRUNED, ReportReturns
from tests.support.signal_in_wait import InterruptingProcess, signal_in_a_wait

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


class InstantTrial:
    """Stands for the process of a trial: it ends at once, with its number as the return."""

    returncode = 0

    def __init__(self, command, **options):
        assert "-P" in command  # a user's logging.py in the working directory breaks no trial
        directory, number = Path(command[-2]) / trial_name(int(command[-1])), int(command[-1])
        directory.mkdir()
        (directory / RESULT).write_text(json.dumps({"is_pruned": False, "value": number, "env_steps": 1}))

    def poll(self):
        return self.returncode


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_continued_sweep_draws_what_a_whole_one_draws(tmp_path, monkeypatch, sampler):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(subprocess, "Popen", InstantTrial)
    sweep = Sweep("x.py", {"agent.learning_rate": {"low": 1e-4, "high": 1e-2}}, (), "none", sampler, seed=3)
    drawn = {}
    for name, calls in {"whole": (12,), "continued": (1, 2, 11, 12)}.items():
        save_sweep(tmp_path / name, sweep)
        for trials in calls:
            assert module.run_trials(tmp_path / name, sweep, trials, 1, lambda line: None) == 0
        trials = open_study(tmp_path / name, sweep).get_trials()
        drawn[name] = [trial.params["agent.learning_rate"] for trial in trials]
    assert drawn["continued"] == drawn["whole"]
    assert len(set(drawn["whole"])) == 12


def test_a_signal_during_a_wait_needs_no_lock(tmp_path):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    sweep = Sweep("x.py", {"agent.learning_rate": {"low": 1e-4, "high": 1e-2}}, (), "none", "random", seed=3)
    save_sweep(tmp_path, sweep)
    with signal_in_a_wait():
        status = module.run_trials(tmp_path, sweep, 2, 1, lambda line: None, lambda task: InterruptingProcess())
    assert status == 128 + signal.SIGTERM


@pytest.mark.parametrize("values_drawn", [0, 1])
def test_a_kill_between_values_uses_up_no_trial(tmp_path, monkeypatch, values_drawn):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(subprocess, "Popen", InstantTrial)
    space = {name: {"low": 1e-4, "high": 1e-2} for name in ("agent.learning_rate", "agent.entropy_coef")}
    sweep = Sweep("x.py", space, (), "none", "random", seed=3)
    options = {}
    for name, killed_after in {"whole": None, "killed": 2 + values_drawn}.items():
        save_sweep(tmp_path / name, sweep)
        if killed_after is not None:
            with monkeypatch.context() as patched:
                patched.setattr(Range, "suggest", kill_after(killed_after))
                with pytest.raises(KeyboardInterrupt):
                    module.run_trials(tmp_path / name, sweep, 3, 1, lambda line: None)
        assert module.run_trials(tmp_path / name, sweep, 3, 1, lambda line: None) == 0
        results = read_results(tmp_path / name, sweep)
        assert [result.state for result in results] == ["complete"] * 3
        options[name] = [result.options for result in results]
    assert options["killed"] == options["whole"]


def kill_after(values):
    """Returns `Range.suggest` that ends the process instead of the draw after some values."""
    suggest, drawn = Range.suggest, []

    def suggest_or_die(entry, trial, name):
        if len(drawn) == values:
            raise KeyboardInterrupt
        drawn.append(suggest(entry, trial, name))
        return drawn[-1]

    return suggest_or_die


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--run.seeds", "4"], "a trial is one run: expected --run.seeds 1, got 4"),
        (["--run.record", "steps"], "is of one run, not of each trial: expected none, got steps"),
        (["--run.name", "mine"], "expected no --run.name, which this command sets for each run: use --directory"),
        (
            ["--run.directory=mine"],
            "expected no --run.directory, which this command sets for each run: use --directory",
        ),
        (["--space", "seeds.toml"], "expected a space without run.seeds"),
        (["--space", "names.toml"], "expected no --run.name, which this command sets for each run: use --directory"),
        (["--seed", "-1"], "the seed must be at least 0: got -1"),
    ],
)
def test_runs_that_cannot_be_trials_are_rejected(tmp_path, monkeypatch, capsys, options, message):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    monkeypatch.chdir(tmp_path)
    Path("space.toml").write_text("agent.learning_rate = {low = 1e-4, high = 1e-2, log = true}\n")
    Path("seeds.toml").write_text("run.seeds = {low = 1, high = 4}\n")
    Path("names.toml").write_text('run.name = {choices = ["a", "b"]}\n')
    with pytest.raises(SystemExit) as ended:
        main(["tune", "ppo_cartpole", "--space", "space.toml", *options])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


def test_a_second_sweep_in_a_directory_is_rejected(tmp_path, capsys):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    command = tune_command(tmp_path, 1, 32)[3:]
    with hold(tmp_path / "sweep"), pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert "is in use by process" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "sweep").iterdir()] == [".lock"]


def test_offline_trials_need_evaluations(tmp_path, capsys):
    (tmp_path / "space.json").write_text('{"agent.learning_rate": {"low": 1e-4, "high": 1e-3}}')
    flags = ["--trials", "1", "--eval.every", "0"]
    with pytest.raises(SystemExit) as ended:
        main(["tune", "bc", "--space", str(tmp_path / "space.json"), "--directory", str(tmp_path / "sweep"), *flags])
    assert ended.value.code == 2
    assert "use --eval.every" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("experiment", "flags", "message"),
    [
        (
            "discrete_cql",
            ["--dataset.path", "none"],
            "expected the directory of a dataset, with manifest.json: got none",
        ),
        ("discrete_cql", [], "plan offline learns from a dataset: use --dataset.path DIRECTORY with it"),
        (
            "dqn_cartpole",
            ["--dataset.path", "none", "--replay.memory", "host"],
            "expected the directory of a dataset, with manifest.json: got none",
        ),
        ("ppo_cartpole", ["--dataset.path", "none"], "a dataset is for agents that learn from replay: ppo does not"),
        ("ppo_cartpole", ["--plan", "offline", "--eval.every", "9"], "ppo learns from what its own policy collects"),
        (
            "ppo_cartpole",
            ["--run.gradient-steps", "9"],
            "run.gradient_steps is a budget for one policy that learns from",
        ),
        (
            "ppo_cartpole",
            ["--eval.env-kwargs", "9"],
            "--eval.env-kwargs: expected NAME=VALUE fields, such as frame_skip=4",
        ),
    ],
)
@pytest.mark.parametrize("manager", ["tune", "population"])
def test_runs_that_can_never_start_are_rejected(tmp_path, monkeypatch, capsys, manager, experiment, flags, message):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    monkeypatch.chdir(tmp_path)
    Path("space.toml").write_text("agent.learning_rate = {low = 1e-4, high = 1e-2, log = true}\n")
    with pytest.raises(SystemExit) as ended:
        main([manager, experiment, "--space", "space.toml", *flags])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["space.toml"]


def test_whether_a_run_can_start_is_seen_without_devices(monkeypatch):
    monkeypatch.setattr(Resources, "detect", lambda: pytest.fail("the devices belong to the runs"))
    validate_start(load_experiment(find_experiment("ppo_cartpole")))


class FakeTrial:
    def __init__(self):
        self.reports, self.user_attrs = {}, {}

    def set_user_attr(self, name, value):
        self.user_attrs[name] = value

    def report(self, value, step):
        assert step not in self.reports
        self.reports[step] = value

    def should_prune(self):
        return self.reports[max(self.reports)] < 5.0


def make_run(env_steps, mean, every=0, mode="greedy", total=1000):
    config = RunConfig(num_envs=10, rollout_length=10, total_env_steps=total)
    stops = []
    return SimpleNamespace(
        config=dataclasses.replace(config, eval=EvalConfig(every=every, mode=mode)),
        env_steps=env_steps,
        num_updates=env_steps // 100,
        episodes=lambda: {} if mean is None else {"episode/return_mean": mean},
        stop=stops.append,
        stops=stops,
    )


def test_callback_reports_training_returns_and_prunes():
    trial = FakeTrial()
    callback = ReportReturns(trial, 5, last=1)
    stops = []
    for env_steps, mean in [(100, 9.0), (200, 9.0), (300, 9.0), (400, 8.0), (600, None), (800, 2.0), (1000, 1.0)]:
        run = make_run(env_steps, mean)
        callback.on_update(run)
        stops += [(env_steps, reason) for reason in run.stops]
    assert trial.reports == {2: 8.0, 4: 2.0, 5: 1.0}  # 1 was reported by an earlier process
    assert stops == [(800, PRUNED)]


def test_a_pruned_trial_that_starts_again_stops():
    optuna = pytest.importorskip("optuna", reason="optuna is not installed: pip install 'jaxsrl[tune]'")
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for mean, stops in ((9.0, []), (1.0, [PRUNED])):
        trial, run = study.ask(), make_run(200, mean)
        ReportReturns(trial, 5).on_update(run)
        assert run.stops == stops
        # It was killed before its result, and resumes from an earlier checkpoint.
        again, complete = make_run(100, mean), make_run(1000, mean)
        resumed = ReportReturns(trial, 5, last=1)
        resumed.on_start(again)
        resumed.on_start(complete)
        assert (again.stops, complete.stops) == (stops, [])


def test_a_report_before_a_kill_still_prunes():
    trial, run, fresh = FakeTrial(), make_run(200, 9.0), make_run(0, None)
    trial.report(1.0, 1)
    ReportReturns(trial, 5, last=1).on_start(run)
    ReportReturns(FakeTrial(), 5).on_start(fresh)
    assert (run.stops, fresh.stops) == ([PRUNED], [])


def test_callback_reports_after_dispatches_of_several_updates():
    trial = FakeTrial()
    callback = ReportReturns(trial, 5)
    for env_steps, mean in [(100, 9.0), (300, 8.0), (700, 7.0), (900, 6.0)]:  # no update at a multiple is seen
        callback.on_update(make_run(env_steps, mean))
    assert trial.reports == {1: 8.0, 3: 7.0, 4: 6.0}


def test_reports_divide_the_env_steps_of_the_run():
    trial = FakeTrial()
    callback = ReportReturns(trial, 2)
    for env_steps in (100, 200, 300, 400):  # as many as a budget of gradient steps allows
        callback.on_update(make_run(env_steps, 9.0, total=400))
    assert trial.reports == {1: 9.0, 2: 9.0}


def test_an_evaluation_after_the_last_update_prunes_nothing():
    trial, stops = FakeTrial(), []
    callback = ReportReturns(trial, 5)
    for done in (900, 1000):
        run = make_run(done, None, every=200)
        callback.on_evaluation(run, Evaluation(6, done - 200, done - 200, "greedy", 1.0, 0.0, 0.0, 0.0, 0.0, 1, 0, 0.0))
        stops.append(run.stops)
    assert trial.reports == {3: 1.0, 4: 1.0}
    assert stops == [[PRUNED], []]


def test_callback_reports_evaluations_instead():
    trial = FakeTrial()
    callback = ReportReturns(trial, 5)
    run = make_run(600, 1.0, every=200, mode="both")
    callback.on_update(run)
    for mode, mean in [("sample", 1.0), ("greedy", 7.0)]:
        callback.on_evaluation(run, Evaluation(4, 400, 400, mode, mean, 0.0, 0.0, 0.0, 0.0, 1, 0, 0.0))
    assert trial.reports == {2: 7.0}
    assert run.stops == []
