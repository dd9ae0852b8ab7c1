"""The commands and the code of docs/how_to/models.md that list, change and follow models."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from jaxsrl.checkpoints.run_directory import CONFIG, RunDirectory
from jaxsrl.cli.main import main
from jaxsrl.models.store import ModelStore

PAGE = (Path(__file__).parents[2] / "docs/how_to/models.md").read_text()


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = ModelStore(Path("runs/ppo_cartpole_seed0/models"))
    for version in range(1, 9):
        store.save(version, {"learner.x": np.full(2, version)}, {"env_steps": version}, **{"return": 100.0 * version})
    store.tag("best", "2")
    return store


def test_documented_commands_change_the_models(store):
    block = re.findall(r"^```\n(.*?)^```$", PAGE.partition("## List and change")[2], re.M | re.S)[0]
    commands = [shlex.split(line)[1:] for line in block.splitlines()]
    assert len(commands) == 7
    for command in commands:
        main(command)
    assert [model.version for model in store.models()] == [2, 4, 5, 6, 7, 8]
    assert store.tags() == {"best": 2}
    assert ModelStore(Path("copies/ppo_cartpole")).tags() == {"best": 2}
    with pytest.raises(SystemExit, match="2"):  # it is frozen
        main(["models", "runs/ppo_cartpole_seed0", "--tag", "a=4"])


def test_a_training_run_without_models_has_an_empty_store(tmp_path, capsys):
    with RunDirectory(tmp_path / "run") as run:  # its lock is held
        (run.path / CONFIG).write_text("{}")
        main(["models", str(run.path), "--json"])
        assert capsys.readouterr().out == '{"models": []}\n'
        with pytest.raises(SystemExit, match="2"):
            main(["models", str(run.path), "--tag", "a=newest"])
        assert "models holds none" in " ".join(capsys.readouterr().err.split())
        main(["models", str(run.path), "--freeze"])
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", CONFIG, "models"]


def test_documented_code_follows_the_models(store, capsys):
    code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)[0]
    exec(code.replace("60.0", "0.0"), {})
    assert capsys.readouterr().out == "8 8 800.0\n"
