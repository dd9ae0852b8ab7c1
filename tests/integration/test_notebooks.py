"""Notebooks run from top to bottom and are committed without outputs."""

import json
import shutil
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_no_output_is_committed(path, tmp_path, monkeypatch):
    directory = tmp_path / "runs"
    directory.mkdir()
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(directory))
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells)
    names = {"__name__": "notebook"}
    for cell in cells:
        exec("".join(cell["source"]), names)
    assert names["evaluation"].mean_return > 50.0
    shutil.rmtree(directory)
