"""Search spaces: ranges and choices of options by their names."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.config.files import flatten_options, option_name, read_mapping

_RANGE = {"low", "high", "log", "step"}
_EXPECTED = "{low = 1e-4, high = 1e-2, log = true}, {low = 1, high = 8, step = 1} or {choices = [32, 64]}"


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, ends included; integers if both are.

    Attributes:
        low: smallest.
        high: largest.
        log: sampled uniformly on a logarithmic scale.
        step: Step between values; None for 1 of integers, and for all numbers otherwise.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_integer(self) -> bool:
        """Returns whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def first(self) -> float:
        """Smallest value."""
        return self.low

    @property
    def spacing(self) -> float | None:
        """Returns the distance between two values; None for all numbers."""
        return self.step or (1 if self.is_integer else None)

    def suggest(self, trial: Any, name: str) -> float:
        """Returns the value that an optuna Trial chooses under this name."""
        if self.is_integer:
            return trial.suggest_int(name, int(self.low), int(self.high), step=int(self.spacing or 1), log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


@dataclasses.dataclass(frozen=True)
class Choices:
    """One of several values. A list or a mapping is a value too.

    Attributes:
        values: Values to choose from.
    """

    values: tuple[Any, ...]

    @property
    def first(self) -> Any:
        """First value."""
        return self.values[0]

    def suggest(self, trial: Any, name: str) -> Any:
        """Returns the value that an optuna Trial chooses under this name."""
        return self.values[trial.suggest_categorical(name, list(range(len(self.values))))]


Space = Mapping[str, Range | Choices]


def read_space(path: Path) -> dict[str, Range | Choices]:
    """Returns the space in a .toml, .yaml or .json file, by dotted option names such as "agent.learning_rate".

    Raises:
        UserError: If the file is missing or not valid.
    """
    return parse_space(read_mapping(path), str(path))


def parse_space(data: Mapping[str, Any], source: str) -> dict[str, Range | Choices]:
    """Returns the space in nested or dotted options, whose innermost mappings are ranges and choices.

    Raises:
        UserError: If an entry is neither; `source` names the file.
    """
    entries: dict[str, dict[str, Any]] = {}
    for name, value in flatten_options(data).items():
        option, dot, field = name.rpartition(".")
        if not dot:
            raise UserError(f"{source}: {name} must be one of {_EXPECTED}: got {value!r}")
        entries.setdefault(option_name(option), {})[field] = value
    if not entries:
        raise UserError(f"{source} has no option: expected agent.learning_rate = {_EXPECTED}")
    return {name: _parse_entry(entry, f"{source}: {name}") for name, entry in entries.items()}


def _parse_entry(entry: dict[str, Any], where: str) -> Range | Choices:
    if set(entry) == {"choices"} and isinstance(entry["choices"], list) and entry["choices"]:
        return Choices(tuple(entry["choices"]))
    if not {"low", "high"} <= set(entry) <= _RANGE:
        raise UserError(f"{where} must be one of {_EXPECTED}: got {entry}")
    low, high = _number(entry["low"], where), _number(entry["high"], where)
    log, step = entry.get("log", False), entry.get("step")
    if not isinstance(log, bool) or low >= high or (log and (low <= 0 or step is not None)):
        raise UserError(f"{where} needs low < high, with log = true also 0 < low and no step: got {entry}")
    if step is not None and _number(step, where) <= 0:
        raise UserError(f"{where} needs a positive step: got {step!r}")
    parsed = Range(low, high, log, None if step is None else _number(step, where))
    if parsed.is_integer and not isinstance(parsed.spacing, int):
        raise UserError(f"{where}: expected an integer as the step of a range of integers, got {step!r}")
    return parsed


def _number(value: Any, where: str) -> float:
    try:
        return value if isinstance(value, int) and not isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        raise UserError(f"{where}: expected a number, got {value!r}") from None
