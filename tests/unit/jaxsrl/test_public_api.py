"""What `import jaxsrl` gives: a small list, that changes only on purpose; imported when it is used; with types."""

import importlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

import jaxsrl

ROOT = Path(__file__).parents[3]
# Adding a name here is a promise; taking one away breaks users: say both in CHANGELOG.md.
PUBLIC = [
    "PLANS",
    "ActiveRun",
    "Callback",
    "CheckpointConfig",
    "ClusterConfig",
    "CurriculumConfig",
    "EnvConfig",
    "EnvPoolError",
    "Episode",
    "EvalConfig",
    "Evaluation",
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
    with pytest.raises(AttributeError, match="no attribute 'teach': its public names are PLANS, ActiveRun, Callback"):
        jaxsrl.teach  # noqa: B018


def test_importing_the_package_imports_no_jax_and_no_numpy():
    code = "import jaxsrl, sys; print(sorted({'jax', 'numpy', 'gymnasium', 'flax'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150)
    assert printed.stdout.strip() == "[]"


def test_all_packages_say_that_they_are_typed():
    for package in ("agents", "envpool_bridge", "jaxsrl"):
        assert (ROOT / package / "py.typed").is_file()


def test_distributions_have_one_version_and_share_no_package():
    main, pool = (tomllib.loads((ROOT / path / "pyproject.toml").read_text()) for path in (".", "envpool_bridge"))
    assert main["project"]["version"] == pool["project"]["version"]
    assert f"envpool-bridge=={pool['project']['version']}" in main["project"]["dependencies"]
    assert main["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["agents", "experiments", "jaxsrl"]
    extras = main["project"]["optional-dependencies"]
    for suite in pool["project"]["optional-dependencies"]:
        assert extras[suite] == [f"envpool-bridge[{suite}]"]


def test_extra_mujoco_has_what_gymnasium_needs_for_it():
    def names(requirements):
        return {re.match(r"[\w.-]+", each)[0].lower() for each in requirements}

    pool = tomllib.loads((ROOT / "envpool_bridge" / "pyproject.toml").read_text())["project"]
    needed = names(each for each in requires("gymnasium") if each.endswith('extra == "mujoco"'))
    assert "mujoco" in needed
    assert needed <= names(pool["optional-dependencies"]["mujoco"])


def test_version_is_the_one_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert jaxsrl.__version__ == project["version"]
