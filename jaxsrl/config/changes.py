"""Configurations with some options changed by their dotted names."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from envpool_bridge.errors import UserError

Config = TypeVar("Config")


def with_options(config: Config, options: Mapping[str, Any]) -> Config:
    """Returns a copy of a dataclass tree with options changed.

    Examples:
        >>> from jaxsrl.config.run_config import RunConfig
        >>> run = with_options(RunConfig(), {"seed": 3, "pool.num_workers": 8})
        >>> run.seed, run.pool.num_workers, run.pool.lanes_per_worker
        (3, 8, 2)

    Args:
        config: frozen dataclass, e.g. a RunConfig or an Experiment.
        options: values by dotted name, e.g. "learner.num_devices".

    Raises:
        UserError: If the configuration has no such option, or a value is invalid.
    """
    own: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        first, _, rest = name.partition(".")
        if not hasattr(config, first):
            known = ", ".join(field.name for field in dataclasses.fields(config))  # pyright: ignore[reportArgumentType]
            raise UserError(f"{type(config).__name__} has no option {first}: expected one of {known}")
        if rest:
            parts.setdefault(first, {})[rest] = value
        else:
            own[first] = value
    for part, changes in parts.items():
        own[part] = with_options(own.get(part, getattr(config, part)), changes)
    return dataclasses.replace(config, **own)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
