"""`jaxsrl new`: the file that it writes is an experiment with the values of the one it copies."""

import dataclasses
from pathlib import Path

import pytest

from jaxsrl.cli.find_experiment import find_experiment, read_summary
from jaxsrl.cli.main import main
from jaxsrl.experiment import load_experiment

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("flags", "source"), [((), "ppo_cartpole"), (("--from", "sac_pendulum"), "sac_pendulum")])
def test_new_writes_an_experiment_that_train_finds(flags, source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["new", "my-experiment", *flags])
    assert "jaxsrl train my_experiment" in capsys.readouterr().out
    path = find_experiment("my_experiment")
    assert path == Path("experiments/my_experiment.py")
    assert read_summary(path) == f"my_experiment: a copy of {source}."
    copy, copied = load_experiment(path), load_experiment(ROOT / "experiments" / f"{source}.py")
    assert copy.run.name == "my_experiment_seed0"
    assert dataclasses.replace(copy, run=dataclasses.replace(copy.run, name=copied.run.name)) == copied


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("taken", "error: experiments/taken.py exists already: choose another name"),
        ("3", "error: expected the name of a Python module such as my_experiment, got '3'"),
        ("../up", "error: expected the name of a Python module"),
        ("class", "error: expected the name of a Python module"),
    ],
)
def test_new_rejects_bad_names_in_one_line(name, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("experiments").mkdir()
    Path("experiments/taken.py").write_text("mine")
    with pytest.raises(SystemExit) as error:
        main(["new", name])
    assert error.value.code == 2
    assert capsys.readouterr().err.startswith(message)
    assert [path.name for path in Path("experiments").iterdir()] == ["taken.py"]
    assert Path("experiments/taken.py").read_text() == "mine"
