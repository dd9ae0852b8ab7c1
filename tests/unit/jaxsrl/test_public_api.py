"""What `import jaxsrl` gives: a small list, that changes only on purpose; imported when it is used; with types."""

import importlib
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import jaxsrl

ROOT = Path(__file__).parents[3]
# Adding a name here is a promise; taking one away breaks users: say both in CHANGELOG.md.
PUBLIC = [
    "PLANS",
    "CheckpointConfig",
    "ClusterConfig",
    "EnvConfig",
    "EnvPoolError",
    "EvaluationConfig",
    "EvaluationReport",
    "Experiment",
    "InferenceConfig",
    "LearnerConfig",
    "LoadedAgent",
    "MachineConfig",
    "MetricsConfig",
    "NetworkConfig",
    "Plan",
    "PoolConfig",
    "ReplayConfig",
    "ReplayMemoryConfig",
    "Resources",
    "RunConfig",
    "RunReport",
    "TrainReport",
    "UserError",
    "Video",
    "evaluate_agent",
    "load_agent",
    "make_env",
    "make_plan",
    "run",
    "train",
]


def test_the_public_names_are_these():
    assert jaxsrl.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(jaxsrl))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(jaxsrl, name)
    assert name == "PLANS" or value.__doc__
    if name not in {"PLANS", "evaluate_agent"}:
        assert value.__name__ == name


def test_modules_of_the_package_are_still_modules():
    assert importlib.import_module("jaxsrl.evaluation.evaluate").evaluate is jaxsrl.evaluate_agent
    assert jaxsrl.evaluation.evaluate.EvaluationReport is jaxsrl.EvaluationReport


def test_a_name_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(AttributeError, match="no attribute 'teach': its public names are PLANS, CheckpointConfig"):
        jaxsrl.teach  # noqa: B018


def test_importing_the_package_imports_no_jax_and_no_numpy():
    code = "import jaxsrl, sys; print(sorted({'jax', 'numpy', 'gymnasium', 'flax'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150)
    assert printed.stdout.strip() == "[]"


def test_all_packages_say_that_they_are_typed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "py.typed" in settings["package-data"]["*"]
    for package in ("agents", "envpool_bridge", "jaxsrl"):
        assert (ROOT / package / "py.typed").is_file()
        assert f"{package}*" in settings["packages"]["find"]["include"]


@pytest.mark.slow
def test_the_wheel_has_the_marks_of_typed_packages(tmp_path):
    # A copy of what is built, because building leaves directories behind.
    source, wheels = tmp_path / "source", tmp_path / "wheels"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    wanted = ("agents/", "envpool_bridge/", "jaxsrl/", "pyproject.toml", "README.md", "LICENSE")
    for name in filter(None, tracked.split("\0")):
        if name.startswith(wanted) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(source)]
    subprocess.run(command, check=True, timeout=150, capture_output=True)
    names = set(zipfile.ZipFile(next(wheels.glob("*.whl"))).namelist())
    assert {"agents/py.typed", "envpool_bridge/py.typed", "jaxsrl/py.typed"} <= names
    assert "jaxsrl/run_plan.py" in names
    assert not any(name.startswith(("tests/", "experiments/")) for name in names)


def test_version_is_the_one_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert jaxsrl.__version__ == project["version"]
