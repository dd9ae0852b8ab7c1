"""Meaning of configuration fields: an algorithm's own values in nested configurations, and rejection of fields without effect."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from envpool_bridge.spec.tree import items

Unread = Iterable[tuple[Any, ...]]
"""Rules (condition, its description, names of the fields that are not read where it holds)."""


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


_PRIORITIES = ("importance_sampling_exponent", "importance_sampling_end", "initial_priority")

_READERS: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    ("the action", _is("continuous"), ("network.squash", "network.initial_log_std", "network.log_std")),
    ("the action", _is("continuous"), ("exploration_noise",)),
    ("the action", lambda kind: kind != "discrete", ("num_proposals",)),
    ("autotune_temperature", bool, ("target_entropy", "temperature_learning_rate")),
    ("epsilon_end - epsilon_start", bool, ("epsilon_decay_fraction",)),
    ("consistency_coef", bool, ("projection_size",)),
    ("network.core", lambda core: core != "none", ("network.core_size", "network.core_layers", "chunk_length")),
    ("network.core", _is("gtrxl"), ("network.core_heads", "network.core_memory")),
    ("network.torso", lambda torso: torso == "entities" or ":" in torso, ("network.entity_heads",)),
    ("noisy", bool, ("noisy_sigma",)),
    ("replay.priority_exponent", bool, _PRIORITIES),
    ("search", _is("gumbel"), ("gumbel.",)),
    ("search", _is("puct"), ("puct.", "temperature", "temperature_schedule.")),
    ("target_noise", bool, ("target_noise_clip",)),
    ("targets", _is("vtrace"), ("vtrace_clip",)),
    ("value_normalization", lambda kind: kind != "none", ("value_normalization_step",)),
    ("value_type", _is("c51"), ("v_min", "v_max")),
    ("value_type", lambda kind: kind != "c51", ("huber_delta",)),
    ("value_type", lambda kind: kind != "scalar", ("num_atoms",)),
)
"""Settings that decide about others: (name, whether a value of it makes the agent read them, their names or "prefix.")."""


class Nested:
    """Base class of configurations in the fields of an algorithm's configuration, such as `optimizer` and `replay`.

    Fields that the constructor is not given have the algorithm's own values there, which `complete` sets. Elsewhere they have
    those of the class.
    """

    given: frozenset[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        names = [field.name for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
        object.__setattr__(self, "given", frozenset((*names[: len(args)], *kwargs)))
        return self

    def unread(self) -> Unread:
        """Returns the rules for fields without effect."""
        return ()


def complete(config: Any) -> None:
    """Sets the values that an algorithm's nested configurations were not given to its own; called by its `__post_init__`.

    Raises:
        UserError: If a field has no effect by `unread` of its configuration, and not its default; or a number is too large.
    """
    validate_numbers(config)
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), _default(field)
        if isinstance(value, Nested):
            names = [own.name for own in dataclasses.fields(default)]
            values = {name: getattr(value if name in value.given else default, name) for name in names}
            value = type(value)(**values)
            object.__setattr__(config, field.name, value)
            _reject_unread(value, default, f"{field.name}.")
    if hasattr(config, "unread"):
        _reject_unread(config, type(config), "")


def validate_numbers(config: Any, prefix: str = "", integer_bits: int = 31) -> None:
    """Validates that the numbers of a configuration, without its parts, are finite, and that programs can compute with them.

    Args:
        config: Dataclass.
        prefix: Text before the names of its fields in messages.
        integer_bits: Integers are smaller than this power of 2.

    Raises:
        UserError: If a number is NaN, infinite or too large.
    """
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        for number in value if isinstance(value, tuple) else (value,):
            limit = 2.0 ** (integer_bits if isinstance(number, int) else 63)
            if isinstance(number, int | float) and not abs(number) < limit:
                raise UserError(f"{name} must be a number smaller than {limit:.0f}: got {number}")


def validate_effect(config: Any, spec: EnvSpec, network: Any) -> None:
    """Validates that an agent reads every setting that differs from its default.

    Args:
        config: Configuration of the algorithm.
        spec: Specification of the environment.
        network: Configuration of the network, or a network, which has no settings.

    Raises:
        UserError: If a setting has no effect with the other settings, or with these actions.
    """
    values: dict[str, tuple[Any, Any]] = {name: (value, usual) for name, value, usual in _settings(config)}
    if dataclasses.is_dataclass(network):
        values |= {f"network.{name}": (value, usual) for name, value, usual in _settings(network)}
    values["the action"] = (_kind_of_actions(spec), "")
    if "epsilon_end" in values:
        values["epsilon_end - epsilon_start"] = (config.epsilon_end - config.epsilon_start, 0.0)
    for decider, reads, names in _READERS:
        if decider not in values or reads(values[decider][0]):
            continue
        for name, (value, usual) in values.items():
            if name in names or name.startswith(tuple(start for start in names if start.endswith("."))):
                reject_other(name, value, usual, f"{decider} is {values[decider][0]!r}")


def _settings(config: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields names, values and defaults of a configuration's fields, with those of nested configurations."""
    for field in dataclasses.fields(config):
        value, usual = getattr(config, field.name), _default(field)
        if isinstance(value, Nested):
            for own in dataclasses.fields(usual):
                yield f"{field.name}.{own.name}", getattr(value, own.name), getattr(usual, own.name)
        else:
            yield field.name, value, usual


def _kind_of_actions(spec: EnvSpec) -> str:
    if any(isinstance(leaf, ArraySpec) for _, leaf in items(spec.action)):
        return "continuous"
    return "discrete" if isinstance(spec.action, DiscreteSpec) else "several discrete"


def _reject_unread(config: Any, defaults: Any, prefix: str) -> None:
    for holds, reason, *names in config.unread():
        for name in names if holds else ():
            reject_other(f"{prefix}{name}", getattr(config, name), getattr(defaults, name), reason)


def reject_other(name: str, value: Any, usual: Any, reason: str) -> None:
    """Raises UserError, which includes `reason`, where a setting without effect is not its default `usual`."""
    if value != usual:
        raise UserError(f"{name} {value!r} has no effect: {reason}; omit it, or use {usual!r}")


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
