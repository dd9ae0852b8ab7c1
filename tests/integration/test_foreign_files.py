"""Whatever deletes leaves the files of others alone, also those with names that jaxsrl's own could have."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import CONFIG
from jaxsrl.checkpoints.store import CheckpointSaveError, CheckpointStore
from jaxsrl.cli.main import main
from jaxsrl.datasets.writer import make_directory
from jaxsrl.machine.doctor.leftovers import find_leftovers
from jaxsrl.models.store import ModelStore
from jaxsrl.results.draw import draw_results
from jaxsrl.runs.control import ControlFiles

ARRAYS = {"learner.x": np.zeros(2)}
NUMBERED = ("2024/notes", "0/notes", "12/base/config.json", "007/notes", "٤/notes", "9/MANIFEST.json")
"""Files of others in a directory of checkpoints: none is of a checkpoint."""


def save_checkpoints(directory):
    store = CheckpointStore(directory, keep=1)
    for step in (3, 4):
        store.save(step, ARRAYS, {})
    store.remove(4, 9, 12, 2024)
    with pytest.raises(CheckpointSaveError, match="2024 is no checkpoint"):
        store.save(2024, ARRAYS, {})
    assert not [path for path in directory.iterdir() if path.name in ("3", "4")]


def collect_models(directory):
    store = ModelStore(directory)
    for version in (3, 4):
        store.save(version, ARRAYS, {}, ["step-1"] if version == 3 else [])
    assert store.collect_garbage(0) == [4]
    assert store.abandon(0) == [3]


def clone_models(directory):
    ModelStore(directory / "source").save(1, ARRAYS, {})
    ModelStore(directory / "source").clone(directory / "copy")


def write_dataset(directory):
    with pytest.raises(UserError, match="something else"), make_directory(directory / "copy"):
        pass


def control_run(directory):
    (directory / "control/request-1.json").write_text("{}")
    ControlFiles(directory)
    assert not (directory / "control/request-1.json").exists()


def draw_page(directory):
    (directory / "records").mkdir()
    shutil.copy(Path(__file__).parents[2] / "results/references.toml", directory / "records")
    draw_results(directory / "records", directory / "page.md")


def clean(directory):
    found = find_leftovers(directory, True, *[directory / "none"] * 2, temporary=[]) if directory.is_dir() else []
    assert not found


@pytest.mark.parametrize(
    ("delete", "names"),
    [
        (save_checkpoints, (*NUMBERED, ".cache.tmp/x", ".٤.tmp/x")),
        (collect_models, (*NUMBERED, ".cache.tmp/x")),
        (clone_models, (".copy.partial/notes",)),
        (write_dataset, (".copy.partial/notes",)),
        (control_run, ("control/notes",)),
        (draw_page, ("pictures/results/mine.svg",)),
        (clean, ("mine/checkpoints/.12.tmp/x",)),
    ],
)
def test_files_of_others_survive_what_deletes(tmp_path, delete, names):
    files = [tmp_path / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    (tmp_path / "none").mkdir()
    delete(tmp_path)
    assert [file for file in files if not file.exists()] == []


def test_foreign_directories_take_no_place_of_checkpoints(tmp_path):
    for name in ("2024", "2025", "2026"):
        (tmp_path / name).mkdir()
    store = CheckpointStore(tmp_path, keep=2)
    for step in (3, 4, 5):
        store.save(step, ARRAYS, {})
    assert store.steps() == [4, 5, 2024, 2025, 2026]


@pytest.mark.parametrize("of_run", ["experiments", "experiments/12", "run/checkpoints"])
def test_models_are_collected_only_from_what_is_a_store(tmp_path, monkeypatch, capsys, of_run):
    monkeypatch.chdir(tmp_path)
    for name in ("experiments/2024", "experiments/12/base"):
        Path(name).mkdir(parents=True)
        Path(name, CONFIG).write_text("{}")
    CheckpointStore(Path("run/checkpoints")).save(4, ARRAYS, {})
    Path("run", CONFIG).write_text("{}")
    before = sorted(Path().rglob("*"))
    with pytest.raises(SystemExit, match="2"):
        main(["models", of_run, "--collect", "0"])
    assert "no models in" in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("flags", [["--collect", "0", "--query", "3"], ["--freeze", "--unfreeze"]])
def test_options_of_models_that_contradict_change_nothing(tmp_path, flags):
    store = ModelStore(tmp_path)
    for version in (3, 4):
        store.save(version, ARRAYS, {})
    store.freeze()
    with pytest.raises(SystemExit, match="2"):
        main(["models", str(tmp_path), *flags])
    assert len(store.models()) == 2
    with pytest.raises(UserError, match="frozen"):
        store.collect_garbage(0)


def test_collected_models_are_named(tmp_path, capsys):
    for version in (3, 4):
        ModelStore(tmp_path).save(version, ARRAYS, {})
    main(["models", str(tmp_path), "--collect", "1", "--json"])
    assert capsys.readouterr().out.startswith('{"removed": [3], "models": [{"update": 4')
