"""Treatment of output that is not as the spaces declare it: an error, or a repair that is counted."""

import logging
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from envpool_bridge.errors import BadEnvOutputError

_LOG = logging.getLogger("envpool_bridge")
_FATAL = "Fix the environment, or declare its actual output in its spaces"
_REPAIRABLE = f"{_FATAL}; strict=False (--env.no-strict) accepts it, and counts it"


class Repairs:
    """Repairs of all environments in this process.

    Attributes:
        total: number of outputs that were repaired.
        on_first: called with a description of the first one.
        on_repair: called with the number of each repair's outputs.
    """

    def __init__(self) -> None:
        self.total = 0
        self.on_repair: Callable[[int], None] = lambda count: None
        self.on_first: Callable[[str], None] = lambda text: _LOG.warning("%s", text)

    def add(self, count: int, text: str) -> None:
        """Counts repaired outputs."""
        if not self.total:
            self.on_first(f"{text}. The output is accepted, and counted, because strict is false")
        self.total += count
        self.on_repair(count)


REPAIRS = Repairs()


class OutputRules:
    """Treatment of the bad output of some rows.

    Args:
        env_id: Environment id for messages.
        row_ids: ids of the rows.
        strict: whether output that could be repaired is an error too.
        allows_nan: whether values that are not finite are accepted where `strict` is false.

    Attributes:
        repaired: number of repaired outputs of each row.
        news: rows with repairs since the reader last cleared it.
    """

    def __init__(self, env_id: str, row_ids: Sequence[int], strict: bool = True, allows_nan: bool = False) -> None:
        self.env_id, self.row_ids = env_id, list(row_ids)
        self.allows_nan = allows_nan and not strict
        self.repaired = [0] * len(self.row_ids)
        self.news: set[int] = set()
        self._strict = strict

    def reject(self, row: int, step: int, field: str, problem: str) -> NoReturn:
        """Raises BadEnvOutputError for output that cannot be repaired."""
        raise_bad_output(self.env_id, self.row_ids[row], step, field, problem)

    def repair(self, row: int, step: int, field: str, problem: str, count: int = 1) -> None:
        """Counts output that the caller repairs. Raises BadEnvOutputError if the rules are strict."""
        if self._strict:
            raise_bad_output(self.env_id, self.row_ids[row], step, field, problem, _REPAIRABLE)
        self.repaired[row] += count
        self.news.add(row)
        REPAIRS.add(count, f"{self.env_id}, row {self.row_ids[row]}, step {step}: bad {field}: {problem}")


def raise_bad_output(env_id: str, row: int, step: int, field: str, problem: str, advice: str = _FATAL) -> NoReturn:
    """Raises the error for a bad field."""
    raise BadEnvOutputError(f"{env_id}, row {row}, step {step}: bad {field}: {problem}. {advice}")


def describe(value: Any) -> str:
    """Describes a wrong value briefly."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def as_numpy(value: Any) -> Any:
    """Returns an array of another library (jax, torch) as an equal one of numpy, and other values unchanged."""
    if isinstance(value, np.ndarray | np.generic) or not (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        return value
    try:
        return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
    except Exception:  # noqa: BLE001  such as torch's for tensors of a GPU: the value is then described as it is
        return value


def converted(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
    """Returns numbers of another form or dtype as an array; None if their shape differs, or an integer would change."""
    try:
        array = np.asarray(as_numpy(value))
    except ValueError:  # lists of different lengths
        return None
    if array.shape != shape or array.dtype.kind not in "fiub":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    return cast if dtype.kind == "f" or np.array_equal(cast, array) else None


def number_of(value: Any) -> float | None:
    """Returns the number that a reward of another form stands for, NaN for None; None if it stands for none."""
    value = as_numpy(value)
    if value is None:
        return float("nan")
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "fiub":
        value = value.item()
    try:
        return float(value) if isinstance(value, numbers.Real | np.bool_) else None
    except OverflowError:  # a Python int above all floats
        return None


def flag_of(value: Any) -> bool | None:
    """Returns the flag that 0, 1, an array of one of them, or None stands for; None if it stands for none."""
    number = 0.0 if value is None else number_of(value)
    return bool(number) if number in (0.0, 1.0) else None
