"""Modules of a run's start, which later processes import whatever the files say by then."""

import importlib
import importlib.machinery
import sys

import pytest

from envpool_bridge.envs.fingerprint import read_modules
from envpool_bridge.envs.kept_modules import import_from

TEXTS = {
    "__init__.py": "UNIT = 1",
    "world.py": """
from kept_package import UNIT
class World:
    def size(self):
        from .helper import SIZE  # by nobody yet
        return SIZE * UNIT
    def speed(self):
        from . import native
""",
    "helper.py": "SIZE = 3",
    f"native{importlib.machinery.EXTENSION_SUFFIXES[0]}": "no machine code",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the user in a directory of the import path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    directory = tmp_path / "kept_package"
    directory.mkdir()
    for name, text in TEXTS.items():
        (directory / name).write_text(text)
    yield directory
    forget()


def forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "kept_package"]:
        del sys.modules[name]


def test_modules_are_imported_as_they_were(package):
    modules = read_modules(importlib.import_module("kept_package.world").World)
    forget()
    for name in TEXTS:
        (package / name).write_text("def broken(:")
    import_from(modules)
    world = importlib.import_module("kept_package.world")
    assert world.World().size() == 3
    assert world.__file__ == str(package / "world.py")
    with pytest.raises(ImportError, match="has changed since the run started"):
        world.World().speed()


def test_installed_packages_and_own_modules_are_not_kept():
    assert read_modules(pytest, importlib.machinery, import_from) == {}
