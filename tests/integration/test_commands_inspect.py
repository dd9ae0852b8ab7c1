"""`jaxsrl inspect`: every number it shows, against the arrays that were saved."""

import json

import numpy as np
import pytest

import jaxsrl.cli.main
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.metrics.evaluations import Evaluation, append_evaluation
from jaxsrl.models.store import ModelStore
from jaxsrl.runs.inspect import short_path

ARRAYS = {
    "learner.num_updates": np.array(7, np.int32),
    "learner.params['torso'][0].kernel": np.array([[3.0, 0.0], [0.0, 4.0]], np.float32),
    "learner.params['head']": np.array([1.0, np.nan, np.inf], np.float32),
    "learner.opt_state[0].mu": np.full((5,), 2.0, np.float64),
    "episodes/count": np.array(3),
}
CONFIG = {
    "agent_name": "mine",
    "experiment": {"run": {"num_envs": 2, "rollout_length": 5, "total_env_steps": 100}},
    "env_spec": {"env_id": "E"},
}


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    store = CheckpointStore(path / "checkpoints", keep=9)
    for step in (3, 7):
        store.save(step, ARRAYS, CONFIG)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "checkpoints" / "quarantine" / "5-0").mkdir(parents=True)
    return path


def inspected(capsys, path):
    jaxsrl.cli.main.main(["inspect", str(path), "--json"])
    return json.loads(capsys.readouterr().out)


def test_parameters_are_listed_with_shape_count_bytes_and_norm(capsys, run):
    found = inspected(capsys, run)
    kernel = {
        "path": "params/torso/0/kernel",
        "shape": [2, 2],
        "dtype": "float32",
        "count": 4,
        "bytes": 16,
        "norm": 5.0,
        "not_finite": 0,
    }
    head = {
        "path": "params/head",
        "shape": [3],
        "dtype": "float32",
        "count": 3,
        "bytes": 12,
        "norm": None,
        "not_finite": 2,
    }
    assert sorted(found["parameters"], key=lambda row: row["path"]) == [head, kernel]
    others = {row["path"]: (row["bytes"], row["norm"]) for row in found["others"]}
    assert others == {
        "num_updates": (4, None),
        "opt_state/0/mu": (40, pytest.approx(20**0.5)),
        "episodes/count": (8, None),
    }
    assert (found["num_parameters"], found["parameter_bytes"], found["checkpoint_bytes"]) == (7, 28, 80)
    assert (found["agent"], found["update"], found["checkpoint"]) == ("mine", 7, str(run / "checkpoints" / "7"))
    assert found["experiment"] == CONFIG["experiment"]
    assert found["spec"] == CONFIG["env_spec"]
    assert set(found["versions"]) == {"jaxsrl", "jax", "numpy", "orbax-checkpoint"}


def test_inspect_reports_damage_without_changes(capsys, run):
    victim = max(
        (run / "checkpoints" / "7" / "state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else -1
    )
    victim.write_bytes(victim.read_bytes() + b"x")
    before = sorted(run.rglob("*"))
    health = inspected(capsys, run)["health"]
    assert [(one["update"], one["health"]) for one in health["checkpoints"]] == [(7, "damaged"), (3, "whole")]
    assert "sha256 differs" in health["checkpoints"][0]["why"]
    assert (health["newest_good"], health["quarantine"], health["update"], health["num_updates"]) == (3, ["5-0"], 7, 10)
    assert sorted(run.rglob("*")) == before
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["inspect", str(run / "checkpoints" / "7")])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: damaged checkpoint ")


def test_inspect_shows_one_checkpoint_with_run_health(capsys, run, tmp_path):
    found = inspected(capsys, run / "checkpoints" / "3")
    assert (found["update"], found["health"]["newest_good"]) == (3, 7)
    alone = (run / "checkpoints" / "3").rename(tmp_path / "alone")
    assert inspected(capsys, alone)["health"] == {}


def test_inspect_shows_the_model_that_a_query_finds(capsys, run):
    store = ModelStore(run / "models")
    for version in (4, 5):
        store.save(version, ARRAYS, CONFIG)
    store.tag("best", "4")
    found = inspected(capsys, run.with_name("run@best"))
    assert (found["update"], found["checkpoint"], found["health"]["newest_good"]) == (4, str(run / "models" / "4"), 7)
    assert inspected(capsys, run.with_name("run@3"))["checkpoint"] == str(run / "checkpoints" / "3")


def test_the_best_evaluation_is_of_the_last_stage(capsys, run):
    for update, stage, mean in ((3, 0, 90.0), (5, 1, 20.0), (7, 1, 10.0)):
        append_evaluation(run, Evaluation(update, 0, 0, "greedy", mean, 0.0, mean, mean, 1.0, 1, 0, 0.1, stage))
    assert inspected(capsys, run)["health"]["best_evaluation"]["update"] == 5


@pytest.mark.parametrize(("evaluated", "shown"), [({"update": 3}, "3"), ({}, "unknown")])
def test_an_evaluation_is_shown_with_its_update(capsys, run, evaluated, shown):
    (run / "eval.json").write_text(json.dumps({"mean_return": 12.5, **evaluated}))
    health = inspected(capsys, run)["health"]
    assert (health["evaluation_return"], health["evaluation_update"]) == (12.5, evaluated.get("update"))
    jaxsrl.cli.main.main(["inspect", str(run)])
    assert f"12.50 (update {shown})" in capsys.readouterr().out


def test_inspect_tables_have_all_sections(capsys, run):
    jaxsrl.cli.main.main(["inspect", str(run)])
    table = capsys.readouterr().out
    for word in (
        "params/torso/0/kernel",
        "2 not finite",
        "run.num_envs",
        "orbax-checkpoint",
        "every file matches its manifest",
        "5-0",
    ):
        assert word in table, word
    assert "opt_state/0/mu" not in table
    jaxsrl.cli.main.main(["inspect", str(run), "--all"])
    assert "opt_state/0/mu" in capsys.readouterr().out


def test_names_of_arrays_become_paths():
    assert short_path("learner.params['a']['b c'][2].d") == "params/a/b c/2/d"
    assert short_path("environments/seeds") == "environments/seeds"
