"""Runs that are found, and what their files say: missing, half written and hostile ones too."""

import json
from pathlib import Path

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import FORMAT, MANIFEST, file_sha256, sign_manifest
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.plan import plan_to_json
from jaxsrl.plan.policies import PLANS
from jaxsrl.runs.summary import find_runs, summarize
from jaxsrl.web.checkpoints import Checkpoints
from jaxsrl.web.run_files import RunFiles, finite
from jaxsrl.web.runs import Runs

CONFIG = {
    "agent_name": "ppo",
    "experiment": {"run": {"seed": 3, "plan": "serial", "total_env_steps": 1000, "num_envs": 4, "rollout_length": 30}},
    "env_spec": {"env_id": "CartPole-v1", "observation": {"high": [float("inf")]}},
}
RECORD = {"update": 5, "env_steps": 600, "frames": 2400, "wall_seconds": 3.0, "episode/return_mean": 21.0}


def make_run(path, config=CONFIG, records=(RECORD,)):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def make_checkpoint(run, update):
    path = run / "checkpoints" / str(update)
    (path / "state").mkdir(parents=True)
    (path / "state" / "data").write_bytes(b"parameters")
    files = {"state/data": file_sha256(path / "state" / "data")}
    said = {"format": FORMAT, "step": update, "files": files, "schema": {"a": {}}, "versions": {"jaxsrl": "1"}}
    (path / MANIFEST).write_text(sign_manifest({**said, "metadata": {"env_steps": 600}}))
    return path


def test_a_run_is_summarized(tmp_path):
    run = RunFiles(make_run(tmp_path / "a"))
    run.records.refresh()
    summary = run.summary("a")
    assert summary["num_updates"] == 9  # 1000 / (4 * 30), rounded up
    expected = {"env": "CartPole-v1", "agent": "ppo", "plan": "serial", "seed": 3, "update": 5, "training_return": 21.0}
    assert {name: summary[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("plan", "done", "total", "unit"), [("serial", 600, 1080, "env steps"), ("offline", 100, 140, "gradient steps")]
)
def test_budget_is_in_the_unit_of_the_steps_done(tmp_path, plan, done, total, unit):
    options = {"plan": plan, "gradient_steps": 130, "dataset": {"gradient_steps_per_update": 20}}
    run = {**CONFIG["experiment"]["run"], **options}
    files = RunFiles(make_run(tmp_path / "a", {**CONFIG, "experiment": {"run": run}}))
    files.records.refresh()
    summary = files.summary("a")
    assert (summary["env_steps"], summary["total_steps"], summary["step_unit"]) == (done, total, unit)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"experiment": 3, "env_spec": []}', '{"experiment": {"run": "x"}}']
)
def test_a_configuration_that_says_nothing_is_no_error(tmp_path, text):
    run = make_run(tmp_path / "a")
    (run / "config.json").write_text(text)
    (run / "plan.json").write_text(text)
    files = RunFiles(run)
    assert files.summary("a")["env"] == ""
    assert files.plan_svg() is None
    json.dumps(files.details(), allow_nan=False)


def test_a_plan_with_fields_of_a_later_version_is_drawn(tmp_path):
    run, plan = make_run(tmp_path / "a"), plan_to_json(PLANS["serial"](RunConfig(), Resources(2, "cpu", 1)))
    (run / "plan.json").write_text(json.dumps(plan))
    drawn = RunFiles(run).plan_svg()
    for part in (*plan["fragments"], *plan["channels"]):
        part["of_a_later_version"] = 1
    (run / "plan.json").write_text(json.dumps(plan))
    assert drawn is not None
    assert RunFiles(run).plan_svg() == drawn


def test_numbers_that_json_lacks_are_named(tmp_path):
    details = RunFiles(make_run(tmp_path / "a")).details()
    assert details["env_spec"]["observation"]["high"] == ["infinity"]
    assert finite({"a": [float("nan"), -float("inf"), 1.5, "x", None]}) == {"a": ["nan", "-infinity", 1.5, "x", None]}


def test_runs_are_found_recursively_and_later(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "group" / "b")
    make_run(tmp_path / "a" / "checkpoints" / "x")  # inside a run there are no runs
    make_run(tmp_path / ".hidden" / "c")
    make_run(tmp_path / "wandb" / "c")
    runs = Runs(tmp_path)
    assert list(runs.all()) == ["a", "group/b"]
    make_run(tmp_path / "d")
    assert runs.get("d") is None
    assert list(runs.all()) == ["a", "d", "group/b"]
    assert runs.get("d") is not None


def test_page_and_table_agree_on_runs(tmp_path):
    make_run(tmp_path / "a")
    deep = make_run(tmp_path / "1" / "2" / "3" / "b", {**CONFIG, "env_spec": {}})
    make_checkpoint(deep, 7)
    make_run(tmp_path / "1" / "2" / "3" / "4" / "too_deep")
    (tmp_path / "link").symlink_to(deep)
    found = Runs(tmp_path).all()
    assert [tmp_path / name for name in found] == find_runs(tmp_path) == [deep, tmp_path / "a"]
    for name, run in found.items():
        run.records.refresh()
        on_page, in_table = run.summary(name), summarize(run.path, tmp_path)
        assert in_table.name == name
        numbers = ("update", "num_updates", "training_return", "env_steps", "evaluation_return")
        for same in ("state", "env", "agent", "plan", "seed", *numbers):
            assert on_page[same] == getattr(in_table, same), same
    assert on_page["update"] == 5
    assert found["1/2/3/b"].summary("b")["update"] == 7


def test_a_run_by_itself_is_called_as_its_directory(tmp_path, monkeypatch):
    assert list(Runs(make_run(tmp_path / "mine")).all()) == ["mine"]
    monkeypatch.chdir(tmp_path / "mine")
    assert list(Runs(Path()).all()) == ["mine"]


def test_a_name_that_was_not_found_opens_nothing(tmp_path):
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "secret")
    runs = Runs(tmp_path / "runs")
    for name in ("../secret", str(tmp_path / "secret"), "a/../../secret", "", ".", "a/"):
        assert runs.get(name) is None


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_a_path_without_runs_is_refused_in_one_line(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("")
    if kind == "empty":
        path.mkdir()
    with pytest.raises(UserError, match="expected a run directory") as caught:
        Runs(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_videos_are_those_of_the_run(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "videos").mkdir()
    (tmp_path / "outside.mp4").write_bytes(b"x")
    for name in ("episode.mp4", "videos/second.mp4", ".half.partial.mp4"):
        (run / name).write_bytes(b"video")
    (run / "link.mp4").symlink_to(tmp_path / "outside.mp4")
    assert sorted(video["name"] for video in RunFiles(run).videos()) == ["episode.mp4", "videos/second.mp4"]


def test_the_health_of_each_checkpoint_is_told(tmp_path):
    run = make_run(tmp_path / "a")
    for update in (10, 20, 30, 40):
        make_checkpoint(run, update)
    (run / "checkpoints" / "20" / "state" / "data").write_bytes(b"Parameters")
    (run / "checkpoints" / "30" / MANIFEST).unlink()
    (run / "checkpoints" / "40" / MANIFEST).write_text(sign_manifest({"format": FORMAT + 1}))
    (run / "checkpoints" / "quarantine" / "5-1").mkdir(parents=True)
    found = Checkpoints().of(run)
    health = {one["update"]: one["health"] for one in found["checkpoints"]}
    assert health == {40: "other version", 30: "damaged", 20: "damaged", 10: "whole"}
    assert found["quarantine"] == ["5-1"]
    assert found["versions"] == {"jaxsrl": "1"}
    assert [one.get("env_steps") for one in found["checkpoints"]] == [None, None, None, 600]


def test_damage_that_comes_later_is_seen(tmp_path):
    run = make_run(tmp_path / "a")
    path, checkpoints = make_checkpoint(run, 10), Checkpoints()
    assert checkpoints.of(run)["checkpoints"][0]["health"] == "whole"
    (path / "state" / "data").write_bytes(b"cut")
    assert checkpoints.of(run)["checkpoints"][0]["health"] == "damaged"


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert Checkpoints().of(make_run(tmp_path / "a")) == {"checkpoints": [], "versions": {}, "quarantine": []}
