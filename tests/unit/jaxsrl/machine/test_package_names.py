"""Packages of other distributions that have the names of jaxsrl's are reported with their owners and a remedy."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.machine import package_names
from jaxsrl.machine.doctor import checks
from jaxsrl.machine.package_names import find_conflict, find_shared_names, find_version, raise_conflict

ROOT = Path(__file__).parents[4]


def install(site, distribution, files):
    """Writes the files of a distribution and its record, as pip does."""
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


OURS = {f"{name}/__init__.py": (ROOT / name / "__init__.py").read_text() for name in package_names.NAMES}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory of packages with jaxsrl's, from which `agents` would be imported."""
    install(tmp_path, "jaxsrl", OURS)
    monkeypatch.setattr(package_names, "_import_location", lambda name: tmp_path / name / "__init__.py")
    return tmp_path


def test_find_conflict_accepts_packages_of_jaxsrl(site):
    assert find_conflict(site) == ""
    assert find_shared_names(site) == {}


def test_find_conflict_names_the_distribution_that_overwrote(site):
    install(site, "openai-agents", {"agents/__init__.py": '"""Agents."""\n', "agents/run.py": ""})
    conflict = find_conflict(site)
    assert f"{site}/agents/__init__.py is not jaxsrl's: openai-agents installs files into" in conflict
    assert conflict.endswith("uninstall openai-agents, then in the checkout: pip install --force-reinstall --no-deps .")


def test_find_shared_names_sees_what_jaxsrl_overwrote(site):
    install(site, "openai-agents", {"agents/run.py": ""})
    assert find_conflict(site) == ""  # jaxsrl came last: it works, and the other distribution does not
    assert find_shared_names(site) == {"agents": ["jaxsrl", "openai-agents"]}


@pytest.mark.parametrize("name", package_names.NAMES)
def test_find_conflict_names_a_missing_package(site, name):
    (site / name / "__init__.py").unlink()
    conflict = find_conflict(site)
    assert conflict.startswith(f"jaxsrl's package `{name}` is missing")
    assert conflict.endswith("in the checkout: pip install --force-reinstall --no-deps .")


def test_find_conflict_names_a_package_found_earlier(site, tmp_path, monkeypatch):
    other = tmp_path / "project" / "agents.py"
    monkeypatch.setattr(package_names, "_import_location", lambda name: other)
    assert find_conflict(site).startswith(
        f"the package `agents` of {other} shadows that of jaxsrl in {site}: rename it"
    )


def test_raise_conflict_raises_only_for_a_conflict(monkeypatch):
    raise_conflict()
    monkeypatch.setattr(package_names, "find_conflict", lambda: "shadowed")
    with pytest.raises(UserError, match="shadowed"):
        raise_conflict()


def test_doctor_reports_shared_packages(monkeypatch):
    assert checks.check_package_names().is_well
    monkeypatch.setattr(checks, "find_shared_names", lambda: {"agents": ["jaxsrl", "openai-agents"]})
    check = checks.check_package_names()
    assert not check.is_well
    assert check.finding == "agents of jaxsrl and openai-agents, experiments of jaxsrl"
    assert "openai-agents installs files into jaxsrl's package `agents` too" in check.advice


def test_import_of_jaxsrl_warns_of_a_shadowing_package(tmp_path):
    (tmp_path / "agents.py").touch()
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import jaxsrl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True)
    assert f"RuntimeWarning: the package `agents` of {tmp_path}/agents.py shadows" in done.stderr


def test_commands_reject_a_shadowing_package_in_one_line(tmp_path):
    (tmp_path / "agents.py").touch()
    (tmp_path / "mine.py").write_text("from agents.ppo import PPOConfig\n")
    command = [sys.executable, "-P", "-m", "jaxsrl.cli.main", "train", "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: the package `agents` of {tmp_path}/agents.py shadows")
    assert done.stderr.count("\n") == 1


def test_version_of_a_checkout_that_is_not_installed_is_unknown():
    assert find_version("numpy") == np.__version__
    assert find_version("no-such-distribution") == "unknown"
