"""Compilation by numba, whose programs are cached on disk."""

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

_numba: Any = importlib.import_module("numba")  # optional, and without types
_SOURCES = sorted(Path(__file__).parents[1].rglob("*.py"))

compiled: Callable[[Any], Any] = _numba.njit(error_model="numpy")
"""Compiles a function as a part of an entry point."""
cached: Callable[[Any], Any] = _numba.njit(error_model="numpy", cache=True)
"""Compiles an entry point and caches it. It must close over `VERSION`: numba's cache only sees the entry point's own file."""
VERSION: str = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()
"""Changes with every source that a constant or a function of the kernel comes from."""
