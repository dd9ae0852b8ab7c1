"""Helpers of the adapters: imports of optional packages on demand, and conversion of spaces."""

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces

from envpool_bridge.errors import UserError


def import_package(module: str, suite: str, advice: str = "") -> Any:
    """Imports a module. Raises UserError with the extra to install, followed by `advice`, if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(
            f"environments of suite {suite!r} need a package that is not installed ({error}): "
            f"pip install 'jaxsrl[{suite}]'{advice}"
        ) from error


def validate_env_id(env_id: str, suite: str, known: Iterable[str]) -> None:
    """Raises UserError with close matches unless the id is known."""
    names = list(known)
    if env_id not in names:
        close = difflib.get_close_matches(env_id, names, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(sorted(names))}"
        raise UserError(f"unknown environment {env_id!r} of suite {suite!r}: {hint}")


def array_space(shape: tuple[int, ...], dtype: Any, low: Any = -np.inf, high: Any = np.inf) -> spaces.Box:
    """Returns a Box with these bounds, which broadcast against `shape`; unbounded by default."""
    dtype = np.dtype(dtype)
    least, most = (-np.inf, np.inf) if dtype.kind == "f" else (0, 1) if dtype.kind == "b" else _integer_limits(dtype)
    lows, highs = (
        np.broadcast_to(np.clip(np.asarray(bound), least, most).astype(dtype), shape) for bound in (low, high)
    )
    return spaces.Box(lows, highs, shape, dtype.type)


def _integer_limits(dtype: Any) -> tuple[int, int]:
    return np.iinfo(dtype).min, np.iinfo(dtype).max
