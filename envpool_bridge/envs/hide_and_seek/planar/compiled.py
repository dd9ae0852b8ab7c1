"""Compilation by numba, whose programs are cached on disk."""

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envpool_bridge.envs.hide_and_seek.phases import compiled

_numba: Any = importlib.import_module("numba")  # optional, and without types
_HERE = Path(__file__).parent
_NOT_COMPILED = ("env.py", "picture.py", "rows.py")
SOURCES: list[Path] = sorted(
    [path for path in _HERE.glob("*.py") if path.name not in _NOT_COMPILED]
    + [_HERE.parent / f"{name}.py" for name in ("game", "layout", "phases", "rewards", "spaces")]
)
"""Files that a constant or a function of the kernel comes from."""
VERSION: str = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()
"""Changes with `SOURCES`."""
cached: Callable[[Any], Any] = _numba.njit(error_model="numpy", cache=True)
"""Compiles an entry point and caches it. It must close over `VERSION`: numba's cache only sees the entry point's own file."""

__all__ = ["SOURCES", "VERSION", "cached", "compiled"]
