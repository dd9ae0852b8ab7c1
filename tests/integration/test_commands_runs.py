"""`jaxsrl runs` and `jaxsrl plot` on runs as training leaves them: states, order, tables, pictures."""

import json
import os

import pytest

import jaxsrl.cli.commands.runs
import jaxsrl.cli.main
from jaxsrl.checkpoints.run_directory import RunDirectory
from jaxsrl.runs.summary import summarize


def make_run(path, returns=(), log="", checkpoints=(), seed=0, env_steps=1000, agent="ppo"):
    (path / "checkpoints").mkdir(parents=True)
    run = {
        "seed": seed,
        "plan": "serial",
        "total_env_steps": env_steps,
        "num_envs": 10,
        "rollout_length": 10,
        "name": path.name,
    }
    config = {
        "agent_name": agent,
        "experiment": {"env": {"id": "CartPole-v1"}, "run": run},
        "env_spec": {"env_id": "CartPole-v1"},
    }
    (path / "config.json").write_text(json.dumps(config))
    with open(path / "metrics.jsonl", "w") as file:
        for update, value in enumerate(returns, 1):
            fixed = {"update": update, "env_steps": update * 100, "frames": update * 100, "wall_seconds": float(update)}
            file.write(json.dumps({**fixed, "episode/return_mean": value}) + "\n")
    if log:
        (path / "log.txt").write_text(f"2026-01-01 00:00:00 starts: 10 updates\n2026-01-01 00:00:00 {log}\n")
    for step in checkpoints:
        (path / "checkpoints" / str(step)).mkdir()
    return path


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    make_run(root / "done", [1.0] * 9 + [5.0], log="complete at update 10, 1000 env steps, 9.0 s", checkpoints=(10,))
    make_run(
        root / "halted",
        [9.0, 2.0],
        log="stopped by SIGTERM at update 2, 200 env steps, 1.0 s",
        checkpoints=(2,),
        seed=1,
    )
    make_run(root / "sweep" / "died", [3.0, 4.0, 2.5], log="checkpoint at update 4", checkpoints=(4,), seed=2)
    make_run(root / "begun")
    for name, update, mean in (("done", 10, 4.0), ("halted", 2, 123.456), ("sweep/died", 3, 5.0)):
        (root / name / "eval.json").write_text(json.dumps({"update": update, "mean_return": mean}))
    return root


def listed(capsys, *arguments):
    jaxsrl.cli.main.main(["runs", *map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)["runs"]


def test_runs_lists_each_result(capsys, runs):
    found = {run["name"]: run for run in listed(capsys, runs)}
    states = {name: (run["state"], run["update"], run["num_updates"], run["progress"]) for name, run in found.items()}
    assert states == {
        "begun": ("empty", 0, 10, 0.0),
        "done": ("finished", 10, 10, 1.0),
        "halted": ("stopped", 2, 10, 0.2),
        "sweep/died": ("crashed", 4, 10, 0.4),
    }
    died = found["sweep/died"]
    assert (died["evaluation_return"], died["training_return"]) == (None, 2.5), "the evaluation is of an earlier update"
    assert (died["checkpoint"], died["env_steps"]) == (4, 400)
    assert (died["env"], died["agent"], died["plan"], died["seed"]) == ("CartPole-v1", "ppo", "serial", 2)
    assert (found["begun"]["training_return"], found["begun"]["checkpoint"]) == (None, None)
    assert {name: found[name]["evaluation_return"] for name in ("begun", "done", "halted")} == {
        "begun": None,
        "done": 4.0,
        "halted": 123.456,
    }


@pytest.mark.parametrize("most_styled", [3, 4])
def test_runs_shows_both_returns_by_name(capsys, runs, monkeypatch, most_styled):
    monkeypatch.setattr(jaxsrl.cli.commands.runs, "_MOST_STYLED", most_styled)
    jaxsrl.cli.main.main(["runs", str(runs)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "evaluation return training return" in printed
    assert "20% 123.5 2.00" in printed


@pytest.mark.parametrize(("gradient_steps", "num_updates"), [(1_100, 11), (None, 1_000)])
def test_offline_runs_count_gradient_steps(tmp_path, gradient_steps, num_updates):
    path = make_run(tmp_path / "run", [1.0] * 5)
    config = json.loads((path / "config.json").read_text())
    own = {"plan": "offline", "gradient_steps": gradient_steps, "dataset": {"gradient_steps_per_update": 100}}
    config["experiment"]["run"] |= own
    (path / "config.json").write_text(json.dumps(config))
    summary = summarize(path)
    assert (summary.num_updates, summary.progress, summary.env_steps) == (num_updates, 5 / num_updates, 500)


def test_a_run_whose_lock_is_held_is_running(capsys, runs):
    with RunDirectory(runs / "halted"):
        assert {run["name"] for run in listed(capsys, runs, "--state", "running")} == {"halted"}
    assert listed(capsys, runs, "--state", "running") == []


def test_runs_sorts_unknown_values_last(capsys, runs):
    os.utime(runs / "done" / "metrics.jsonl", (1, 1))
    os.utime(runs / "done" / "log.txt", (1, 1))
    os.utime(runs / "done" / "config.json", (1, 1))
    assert [run["name"] for run in listed(capsys, runs)] == ["begun", "done", "halted", "sweep/died"]
    assert [run["name"] for run in listed(capsys, runs, "--sort", "evaluation")] == [
        "halted",
        "done",
        "begun",
        "sweep/died",
    ]
    assert [run["name"] for run in listed(capsys, runs, "--sort", "training")] == [
        "done",
        "sweep/died",
        "halted",
        "begun",
    ]
    assert [run["name"] for run in listed(capsys, runs, "--sort", "progress")] == [
        "done",
        "sweep/died",
        "halted",
        "begun",
    ]
    assert listed(capsys, runs, "--sort", "age")[-1]["name"] == "done"
    assert listed(capsys, runs, "--state", "stopped", "crashed", "--sort", "state")[0]["name"] == "sweep/died"


@pytest.mark.parametrize("by", ["env", "agent"])
def test_runs_sorts_a_run_without_a_configuration_last(capsys, runs, by):
    (runs / "begun" / "config.json").write_text("{}")
    assert [run["name"] for run in listed(capsys, runs, "--sort", by)] == ["done", "halted", "sweep/died", "begun"]


def test_runs_handles_one_run_and_empty_directory(capsys, runs, tmp_path):
    (one,) = listed(capsys, runs / "done")
    assert one["name"] == "done"
    (tmp_path / "none").mkdir()
    jaxsrl.cli.main.main(["runs", str(tmp_path / "none")])
    assert "no runs in" in capsys.readouterr().out
    jaxsrl.cli.main.main(["runs", str(runs)])
    table = capsys.readouterr().out
    assert all(word in table for word in ("sweep/died", "crashed", "40%", "CartPole-v1", "4.0"))


def test_the_age_is_since_the_newest_file_that_a_run_writes(runs):
    for name in ("metrics.jsonl", "config.json"):
        os.utime(runs / "done" / name, (100, 100))
    os.utime(runs / "done" / "log.txt", (400, 400))
    assert summarize(runs / "done", now=1000.0).age_seconds == 600.0
    assert summarize(runs / "done", now=10.0).age_seconds == 0.0


def test_plot_writes_file_table_and_json(capsys, runs, tmp_path):
    out = tmp_path / "plot.svg"
    jaxsrl.cli.main.main(["plot", str(runs), "--out", str(out), "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    (group,) = found["groups"]
    assert (found["out"], group["label"], len(group["runs"]), group["x"][-1]) == (str(out), "ppo", 3, 200.0)
    assert group["mean"][-1] == pytest.approx((1 + 2 + 4) / 3)
    assert out.read_text().count("ppo (3 runs)") == 1
    assert printed.err.splitlines() == [f"warning: {warning}" for warning in found["warnings"]]
    assert "begun is skipped: it has no records yet" in printed.err
    jaxsrl.cli.main.main(
        ["plot", str(runs / "done"), str(runs / "halted"), "--out", str(out), "--group-by", "run", "--x", "time"]
    )
    table = capsys.readouterr().out
    assert all(word in table for word in ("done", "halted", "10.0 training time (s)", "5.00", f"written to {out}"))
