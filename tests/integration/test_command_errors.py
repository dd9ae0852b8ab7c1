"""What every command says of paths that are wrong and of runs that are half there: one helpful line, and no traceback."""

import contextlib
import errno
import json

import numpy as np
import pytest

import jaxsrl.cli.main
from experiments.ppo_cartpole import EXPERIMENT
from jaxsrl.checkpoints.manifest import MANIFEST, sign_manifest
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.config.serialization import to_json

RECORD = {"update": 1, "env_steps": 4096, "frames": 4096, "wall_seconds": 2.0, "episode/return_mean": 20.0}
ARRAYS = {"learner.num_updates": np.array(1, np.int32), "learner.params['w']": np.ones((2, 2), np.float32)}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Paths by what is wrong with them."""
    root = tmp_path_factory.mktemp("places")
    experiment = to_json(EXPERIMENT)
    config = {"agent_name": "ppo", "experiment": experiment, "env_spec": {"env_id": "CartPole-v1"}}
    found = {"nowhere": root / "nowhere"}
    for name in ("empty", "begun", "half", "newer", "foreign"):
        found[name] = root / "runs" / name
        found[name].mkdir(parents=True)
        if name != "empty":
            (found[name] / "config.json").write_text(json.dumps(config))
    # What cannot be read, for a user who may read everything: directories in the places of files, and the reverse.
    for name in ("metrics.jsonl", "checkpoints"):
        found[f"no {name}"] = root / f"no {name}" / "run"
        found[f"no {name}"].mkdir(parents=True)
        (found[f"no {name}"] / "config.json").write_text(json.dumps(config))
    (found["no metrics.jsonl"] / "metrics.jsonl").mkdir()
    (found["no checkpoints"] / "checkpoints").write_text("text")
    found["odd"] = root / "odd" / "run"
    found["odd"].mkdir(parents=True)
    (found["odd"] / "config.json").write_text('{"agent_name": 3, "experiment": {"run": 7, "env": []}, "env_spec": "x"}')
    (found["odd"] / "metrics.jsonl").write_text('null\n[]\n{"update": "x", "env_steps": null}\n')
    found["file"] = root / "file.txt"
    found["file"].write_text("text")
    found["script"] = root / "script.py"
    found["script"].write_text("x = 1\n")
    # The disk was full or the machine lost power: half a record, a checkpoint without its manifest.
    text = json.dumps(RECORD)
    (found["half"] / "metrics.jsonl").write_text(text + "\n" + text[: len(text) // 2])
    (found["half"] / "checkpoints" / "5" / "state").mkdir(parents=True)
    newer = CheckpointStore(found["newer"] / "checkpoints").save(5, ARRAYS, config)
    manifest = json.loads((newer / MANIFEST).read_text())
    (newer / MANIFEST).write_text(sign_manifest({**manifest, "format": 99}))
    found["newer checkpoint"] = newer
    foreign = {**config, "experiment": {**experiment, "agent": {**experiment["agent"], "shoe_size": 43}}}
    (found["foreign"] / "config.json").write_text(json.dumps(foreign))
    found["foreign checkpoint"] = CheckpointStore(found["foreign"] / "checkpoints").save(5, ARRAYS, foreign)
    return found


NO_RUN = "is no checkpoint and no run directory: expected a directory with MANIFEST.json"
CASES = [
    ("evaluate", "nowhere", NO_RUN),
    ("evaluate", "file", NO_RUN),
    ("evaluate", "empty", NO_RUN),
    ("evaluate", "begun", "has no checkpoint yet: let it train"),
    ("evaluate", "half", "no checkpoint of this run is whole"),
    ("evaluate", "newer", "has checkpoint format 99, this version of jaxsrl reads 3"),
    ("evaluate", "newer checkpoint", "has checkpoint format 99, this version of jaxsrl reads 3"),
    ("evaluate", "foreign", "has no field shoe_size: the file was written by another version of jaxsrl"),
    ("evaluate --all", "nowhere", "has no checkpoints: expected a run directory"),
    ("evaluate --all", "begun", "has no checkpoints: expected a run directory"),
    ("evaluate --all", "half", "no checkpoint of"),
    ("evaluate --all", "newer", "has checkpoint format 99, this version of jaxsrl reads 3"),
    ("evaluate --out x.png", "begun", "--out draws a curve over checkpoints: give --all too"),
    ("evaluate --all --out x.gif", "begun", "a plot is written as .png, .svg or .pdf"),
    ("evaluate --all --video x.mp4", "begun", "--video shows one checkpoint: omit --all"),
    ("evaluate --all --opponent random", "begun", "--opponent plays one checkpoint: omit --all"),
    (
        "evaluate --opponent random --video x.mp4",
        "begun",
        "games against an opponent are not recorded: expected no --video",
    ),
    (
        "evaluate --opponent random --max-rows 8",
        "begun",
        "all games of a seat are played at once: omit --max-rows 8",
    ),
    ("control set learning_rate", "begun", "for example learning_rate_factor=0.5: got 'learning_rate'"),
    ("inspect", "nowhere", "does not exist: expected a run directory"),
    ("inspect", "file", "is neither: expected a run directory"),
    ("inspect", "empty", "is neither: expected a run directory"),
    ("inspect", "newer checkpoint", "has checkpoint format 99, this version of jaxsrl reads 3"),
    ("plot", "nowhere", "there is no directory"),
    ("plot", "file", "is a file: expected a run's directory"),
    ("plot", "empty", "there is no run in"),
    ("plot", "begun", "has no records yet (metrics.jsonl); train it first"),
    ("plot --metric loss", "half", "no run here has a metric 'loss'"),
    ("plot --out nowhere/x.png", "half", "there is no directory nowhere"),
    ("plot --group-by shoe", "half", "--group-by shoe: no run here has such a field"),
    ("plot --normalize nowhere.json", "half", "cannot read nowhere.json"),
    ("evaluate", "no checkpoints", "has no checkpoint yet"),
    ("evaluate", "odd", "has no checkpoint yet"),
    ("plot", "no metrics.jsonl", "metrics.jsonl: Is a directory"),
    ("plot", "odd", "has no records yet"),
    ("runs", "nowhere", "there is no directory"),
    ("runs", "file", "is a file: expected a run's directory"),
    ("plan", "nowhere", "there is no file"),
    ("plan", "file", "cannot be imported as Python: expected a .py file"),
    ("plan", "script", "has no EXPERIMENT: expected EXPERIMENT = Experiment(...)"),
    ("train", "nowhere", "there is no file"),
    ("train", "empty", "there is no file"),
    ("view", "nowhere", "expected a run directory, or a directory of runs"),
    ("view", "file", "expected a run directory, or a directory of runs"),
    ("view", "empty", "there is no run in"),
]


@pytest.mark.parametrize(("command", "place", "message"), CASES)
def test_usage_errors_are_one_line_with_status_2(capsys, places, tmp_path, monkeypatch, command, place, message):
    monkeypatch.chdir(tmp_path)
    name, *flags = command.split()
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main([name, str(places[place]), *flags])
    printed = capsys.readouterr()
    assert ended.value.code == 2
    *warnings, last = [line for line in printed.err.splitlines() if not line.startswith("  ")]
    assert last.startswith("error: ")
    assert message in last
    assert all(line.startswith("warning: ") for line in warnings)
    assert printed.out == ""


@pytest.mark.parametrize("arguments", [["train", "ppo-cartpol"], ["plan", "ppo_cartpol"]])
def test_misspelled_name_gets_a_suggestion(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(arguments)
    assert ended.value.code == 2
    assert "there is no experiment" in (printed := capsys.readouterr().err)
    assert "ppo_cartpole" in printed


@pytest.mark.parametrize(
    ("arguments", "message"), [(["train"], "--list"), (["plot"], "expected at least one run directory")]
)
def test_command_names_missing_argument(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def answer(capsys, *arguments):
    jaxsrl.cli.main.main([str(argument) for argument in arguments])
    return json.loads(capsys.readouterr().out)


def test_a_run_that_is_half_there_is_shown_as_far_as_it_goes(capsys, places, tmp_path):
    for name in ("begun", "half", "newer", "foreign"):
        found = answer(capsys, "inspect", places[name], "--json")
        assert found["agent"] == "ppo"
        assert (found["health"]["newest_good"], found["update"]) == ((5, 5) if name == "foreign" else (None, None))
    assert [one["health"] for one in answer(capsys, "inspect", places["half"], "--json")["health"]["checkpoints"]] == [
        "damaged"
    ]
    (newer,) = answer(capsys, "inspect", places["newer"], "--json")["health"]["checkpoints"]
    assert newer["health"] == "other version"
    drawn = answer(capsys, "plot", places["half"], "--json", "--out", tmp_path / "plot.svg")
    assert drawn["groups"][0]["mean"][0] == 20.0
    runs = answer(capsys, "runs", places["half"].parent, "--json")["runs"]
    assert {run["name"]: run["state"] for run in runs} == {
        "begun": "empty",
        "half": "crashed",
        "newer": "crashed",
        "foreign": "crashed",
    }


def test_a_configuration_that_is_no_json_spoils_no_list(capsys, tmp_path):
    for name, text in (("torn", '{"agent'), ("list", "[]"), ("good", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    runs = {run["name"]: run["problem"] for run in answer(capsys, "runs", tmp_path, "--json")["runs"]}
    assert runs["good"] == ""
    assert runs["torn"].startswith("cannot read ")
    assert runs["list"].endswith("is no JSON object")
    jaxsrl.cli.main.main(["runs", str(tmp_path)])
    assert "cannot read" in capsys.readouterr().out
    assert answer(capsys, "inspect", tmp_path / "torn", "--json")["health"]["problem"].startswith("cannot read ")


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(capsys, places):
    (run,) = answer(capsys, "runs", places["no metrics.jsonl"], "--json")["runs"]
    assert run["problem"].endswith("metrics.jsonl: Is a directory")
    for name in ("no checkpoints", "odd"):
        (run,) = answer(capsys, "runs", places[name], "--json")["runs"]
        assert run["state"] in {"empty", "crashed"}
        assert answer(capsys, "inspect", places[name], "--json")["health"]["newest_good"] is None


def test_a_file_that_the_system_keeps_from_us_is_one_line(capsys, monkeypatch, places):
    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "runs/x")

    monkeypatch.setattr("jaxsrl.runs.summary.find_runs", denied)
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["runs", str(places["empty"])])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: cannot read or write runs/x: Permission denied\n"


def test_the_doctor_looks_into_a_directory_of_odd_runs(capsys, places):
    with contextlib.suppress(SystemExit):  # this machine may have other troubles
        jaxsrl.cli.main.main(["doctor", "--runs", str(places["no checkpoints"].parent), "--json"])
    assert "checks" in json.loads(capsys.readouterr().out)
