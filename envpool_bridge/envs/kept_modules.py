"""Modules as they were when a run began: a process that starts later imports these texts, whatever their files say by then."""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from envpool_bridge.envs.fingerprint import hash_file

KeptModules = Mapping[str, tuple[str, bytes]]
"""File of each module, and its text, or of a compiled module the hash; from `fingerprint.read_modules`."""


def import_from(modules: KeptModules) -> None:
    """Makes this process import these modules as they were. A compiled module that has changed cannot be imported any more."""
    if modules:
        sys.meta_path.insert(0, _Finder(modules))


class _Finder:
    """Finder of kept modules."""

    def __init__(self, modules: KeptModules) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns the spec of a kept module; None for others."""
        del path, target
        file, text = self._modules.get(name, ("", b""))
        if file.endswith(".py"):
            places = [os.path.dirname(file)] if os.path.basename(file) == "__init__.py" else None
            loader = _Loader(name, file, text)
            return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=places)
        if file:
            with open(file, "rb") as compiled:
                if hash_file(compiled.read()) != text.decode():
                    raise ImportError(
                        f"{file} has changed since the run started: put the earlier one back, or start the run again"
                    )
        return None


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader of one kept module."""

    def __init__(self, name: str, file: str, text: bytes) -> None:
        super().__init__(name, file)
        self._text = text

    def get_data(self, path: str) -> bytes:
        """Returns the kept text in place of the file's."""
        return self._text if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> CodeType:
        """Returns the compiled text; compiled files may be newer."""
        del fullname
        return self.source_to_code(self._text, self.path)
