"""Notebooks run from top to bottom in a kernel of their own, with small sizes, and are committed without outputs."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import jaxsrl

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

# What takes the place of each notebook's first cell of code, and what must hold once it has run.
SMALL = {
    "01_train_ppo": (
        "ENV_STEPS = 20_480; EPISODES = 4",
        "assert evaluation.mean_return > 30.0 and len(curve) > 1 and len(evaluation.returns) == 4",
    ),
    "02_variant_loss": (
        "ENV_STEPS = 10_240; SEEDS = (0,)",
        "assert set(final) == {'make_ppo', 'make_kl_ppo'} and final['make_ppo'] != final['make_kl_ppo']\n"
        "assert runs['make_kl_ppo'][0].name.startswith('ppo_kl_CartPole-v1_discount=0.98')",
    ),
    "03_checkpoint_and_video": (
        "RUN = ''; ENV_STEPS = 20_480; EPISODES = 4; VIDEO_EPISODES = 1",
        "assert loaded.update == 10 and path.stat().st_size > 1000 and len(shown.returns) == 1",
    ),
    "04_own_plan": (
        "ENV_STEPS = 4096",
        "assert largest_difference < 1e-4 and 'use --pool.num-workers' in refusal",
    ),
    "05_own_environment_and_network": (
        "ENV_STEPS = 20_480; SIZE = 3",
        "assert evaluation.mean_return > 0.3 and 'row 0, step 0: bad observation' in refusal",
    ),
    "06_warm_start": (
        "ENV_STEPS = 81_920; TUNED_STEPS = 10_240",
        "assert set(curves) == {'from nothing', 'all parameters', 'torso only'} and all(map(len, curves.values()))\n"
        "assert returns['student'] > returns['alone'] and returns['teacher'] > 100.0",
    ),
    "07_self_play_and_ratings": (
        "UPDATES = 60; EVERY = 10",
        "assert len(circle) == len(learner) == 6 and int(library.count) == 7 and abs(mixture.sum() - 1.0) < 1e-5\n"
        "assert abs(weights.sum() - 1.0) < 1e-6 and abs(ratings.rating.sum()) < 1e-3",
    ),
    "09_datasets": (
        "ENV_STEPS = 4_096; RECORDED_STEPS = 1_000; GRADIENT_STEPS = 1_000; ONLINE_STEPS = 2_048",
        "assert mixed.num_valid_steps >= 2_000 and returns.mean() < 400.0\n"
        "assert learned.env_steps == 1_000 and tuned.env_steps == 2_048 and len(tuned.evaluation.returns) == 20",
    ),
    "08_search_tree": (
        "SIMULATIONS = 64",
        "assert action == 'right' and picture.count('<circle') == int((visits > 0).sum()) > 8\n"
        "assert list(result.visits[0]) == [int(visits[child]) for child in children[0]]",
    ),
}


def parameters_of(notebook):
    return next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))


def test_every_notebook_is_tested():
    assert sorted(SMALL) == sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("name", SMALL)
def test_notebook_has_no_output_and_replaceable_sizes(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    sizes = parameters_of(notebook)
    assert sizes is code[0]
    names = r"^\s*([A-Z_]+) ="
    assert set(re.findall(names, sizes.source, re.M)) == set(re.findall(r"([A-Z_]+) =", SMALL[name][0]))


@pytest.mark.parametrize("name", SMALL)
def test_notebook_imports_exist(name):
    # What may change under a notebook, told without running it.
    cells = [cell.source for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4).cells if cell.cell_type == "code"]
    tree = ast.parse("\n".join(cells))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "jaxsrl":
            assert node.attr in jaxsrl.__all__


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages that talk to kernels
@pytest.mark.parametrize("name", SMALL)
def test_every_cell_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where runs are written
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    sizes, holds = SMALL[name]
    parameters_of(notebook).source = sizes
    notebook.cells.append(nbformat.v4.new_code_cell(holds))
    client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute()
