"""Configuration files: a run's config.json, or YAML, TOML or JSON with the nesting of the flags."""

import dataclasses
import difflib
import json
import math
import tomllib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from envpool_bridge.errors import UserError
from jaxsrl.config.json_flags import JSON_OPTIONS, with_entries
from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import to_json

_CONFIG = "config.json"
_RUN_PARTS = frozenset(name for name, value in vars(RunConfig()).items() if dataclasses.is_dataclass(value))
_OF_RUN = _RUN_PARTS | {"plan"}  # flags without the prefix `run.`


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """Options of a configuration file.

    Attributes:
        path: Path of the file.
        options: nested as an Experiment is; without the name of the run that wrote the file.
        agent_name: name in the catalog of algorithms, if a run wrote the file; otherwise "".
        run_directory: Run directory of the run that wrote the file; None for a file of a user.
    """

    path: Path
    options: dict[str, Any]
    agent_name: str = ""
    run_directory: Path | None = None


def read_config_file(path: Path) -> ConfigFile:
    """Returns the options of a file, or of the config.json in a run directory.

    Raises:
        UserError: If the file cannot be read, or is no mapping.
    """
    path = path / _CONFIG if path.is_dir() else path
    data = read_mapping(path)
    if isinstance(data.get("experiment"), dict) and "agent_name" in data:
        name = data.get("algorithm", data["agent_name"])  # policies of several algorithms have a joint agent_name
        options, run = data["experiment"], data["experiment"].get("run")
        if isinstance(run, dict):
            options = {**options, "run": {key: value for key, value in run.items() if key != "name"}}
        return ConfigFile(path, options, name, path.absolute().parent)
    return ConfigFile(path, nest_options(data))


def read_mapping(path: Path) -> dict[str, Any]:
    """Returns the mapping in a .yaml, .yml, .toml or .json file.

    Raises:
        UserError: If the file cannot be read, has another suffix, or holds no mapping.
    """
    try:
        data = _parse(path)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a mapping of options, such as pool: {{num_workers: 4}}; got {data!r:.80}")
    return data


def _parse(path: Path) -> Any:
    if path.suffix == ".toml":
        return tomllib.loads(path.read_text())
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix not in (".yaml", ".yml"):
        if not path.exists():
            raise UserError(f"there is no {path} in {Path.cwd()}: expected a run directory or a file of options")
        raise UserError(f"a configuration file ends with .yaml, .toml or .json: got {path}")
    import yaml

    try:
        return yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}") from error


def nest_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options by the fields of an Experiment, from options by the names of flags, nested or dotted.

    Examples:
        >>> nest_options({"pool": {"num-workers": 4}, "run.seed": 1, "env.kwargs.frame-skip": 2})
        {'run': {'pool': {'num_workers': 4}, 'seed': 1}, 'env': {'kwargs': {'frame-skip': 2}}}
    """
    nested: dict[str, Any] = {}
    for name, value in flatten_options(options, into_entries=False).items():
        *parts, last = _name_parts(name)
        place = nested
        for part in parts:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UserError(f"the option {name} is below {part}, which has a value: give one of them")
        place[last] = value
    return nested


def option_name(flag: str) -> str:
    """Returns the dotted name of an option in an Experiment: "run.pool.num_workers" for "pool.num-workers"."""
    return ".".join(_name_parts(flag))


def _name_parts(flag: str) -> list[str]:
    """Returns the parts of an option's name; an entry of a JSON object is one part, as the user spells it."""
    spelled = flag.removeprefix("--")
    name = spelled.replace("-", "_")
    if name.split(".")[0] in _OF_RUN:
        spelled, name = f"run.{spelled}", f"run.{name}"
    for option in JSON_OPTIONS:
        if name.startswith(f"{option}."):
            return [*option.split("."), spelled[len(option) + 1 :]]
    return name.split(".")


def flatten_options(options: Mapping[str, Any], prefix: str = "", into_entries: bool = True) -> dict[str, Any]:
    """Returns options by dotted names; an empty mapping is a value.

    Args:
        options: nested or dotted.
        prefix: Prefix of their names.
        into_entries: whether a mapping in an entry of a JSON object is nested options, too, and not a value.
    """
    flat: dict[str, Any] = {}
    for name, value in options.items():
        where = f"{prefix}{name}"
        is_entry = ".".join(_name_parts(where)[:-1]) in JSON_OPTIONS
        if isinstance(value, Mapping) and value and (into_entries or not is_entry):
            flat |= flatten_options(value, f"{where}.", into_entries)
        else:
            flat[where] = value
    return flat


def with_file_options(experiment: Any, options: Mapping[str, Any], source: str) -> Any:
    """Returns an experiment with the options of a file.

    Args:
        experiment: dataclass with nested dataclasses.
        options: nested as its fields are.
        source: Source of the options, for messages: the file's path.

    Raises:
        UserError: If an option is unknown; the message names the nearest known one. Or its value has another type.
    """
    try:
        return _with_options(experiment, options, "")
    except _UnknownOptionError as error:
        known = {flag_name(name): name for name in option_names(experiment)}
        near = difflib.get_close_matches(flag_name(error.name), known, n=1, cutoff=0.0)
        raise UserError(f"{source}: unknown option {flag_name(error.name)}: did you mean {near[0]}?") from None
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def flag_name(name: str) -> str:
    """Returns the name of an option as files and flags give it: "pool.num_workers" for "run.pool.num_workers"."""
    short = name.removeprefix("run.")
    return short if short.split(".")[0] in _OF_RUN else name


def option_names(config: Any, prefix: str = "") -> Iterator[str]:
    """Yields the dotted names of a dataclass's fields, with those of nested dataclasses."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from option_names(value, f"{prefix}{field.name}.")
        yield f"{prefix}{field.name}"


class _UnknownOptionError(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _with_options(config: Any, options: Mapping[str, Any], prefix: str) -> Any:
    kinds = get_type_hints(type(config))
    known = {field.name for field in dataclasses.fields(config)}
    changes: dict[str, Any] = {}
    for name, value in options.items():
        where = f"{prefix}{name}"
        if name not in known:
            raise _UnknownOptionError(where)
        current = getattr(config, name)
        if to_json(current) == value:  # also of what a file cannot hold: a function
            continue
        if where in JSON_OPTIONS and isinstance(value, Mapping) and value:
            changes[name] = with_entries(current, value)
        elif dataclasses.is_dataclass(current) and isinstance(value, Mapping):
            changes[name] = _with_options(current, value, f"{where}.")
        else:
            changes[name] = _convert(kinds[name], value, where)
    return dataclasses.replace(config, **changes)


def _convert(kind: Any, value: Any, name: str) -> Any:
    """Returns the value of a file as the type of an option."""
    if get_origin(kind) in (Union, types.UnionType):
        return _convert_to_any(get_args(kind), value, name)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if get_origin(kind) is tuple and isinstance(value, list):
        of = get_args(kind)
        each = of[:1] * len(value) if of[1:] == (...,) else of
        if len(each) == len(value):
            return tuple(_convert(kind, item, name) for kind, item in zip(each, value, strict=True))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        kinds = get_type_hints(kind)
        for field in value:
            if field not in kinds:
                raise _UnknownOptionError(f"{name}.{field}")
        return kind(**{field: _convert(kinds[field], item, f"{name}.{field}") for field, item in value.items()})
    if kind is Any:
        return tuple(value) if isinstance(value, list) else value
    converted = _convert_scalar(kind, value)
    if converted is None and kind is not type(None):
        expected = " or ".join(map(str, get_args(kind))) if get_origin(kind) is Literal else _type_name(kind)
        raise UserError(f"option {flag_name(name)}: expected {expected}, got {value!r}")
    return converted


def _convert_to_any(kinds: tuple[Any, ...], value: Any, name: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        try:
            return _convert(kind, value, name)
        except UserError:
            continue
    raise UserError(
        f"option {flag_name(name)}: expected {' or '.join(map(_type_name, kinds))}, got {value!r}; a file cannot hold a function"
    )


def _convert_scalar(kind: Any, value: Any) -> Any:
    """Returns the value as a bool, int, float or string; None if it is none."""
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if kind in (int, float) and isinstance(value, (int, float, str)):
        try:
            number = float(value)  # YAML reads 1e-4 as a string
        except ValueError:
            return None
        if kind is float:
            return number
        exact = value if isinstance(value, int) else int(number) if math.isfinite(number) else None
        return exact if exact == number else None
    if kind is str:
        return json.dumps(value) if isinstance(value, Mapping) else value if isinstance(value, str) else None
    return None


def _type_name(kind: Any) -> str:
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))
