"""A Python file of the user's, imported by its path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from envpool_bridge.errors import UserError


def import_file(path: Path, prefix: str) -> ModuleType:
    """Returns the module in `path`; its directory is importable while it is imported, as when Python runs the file.

    Args:
        path: Path of a Python file.
        prefix: Prefix of the module's name, so that a file called like a package (`jax.py`) does not take its place.

    Raises:
        UserError: If there is no such file, or Python cannot import it. Exceptions of the file itself are raised unchanged.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path} in {Path.cwd()}: check the path")
    name = f"{prefix}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be imported as Python: expected a .py file")
    module = importlib.util.module_from_spec(spec)
    directory = str(path.resolve().parent)
    sys.modules[name] = module  # dataclasses in the file look their module up
    sys.path.insert(0, directory)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(directory)
    return module
