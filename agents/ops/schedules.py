"""Hyper-parameters that change over a run, as pure functions of the number of updates."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.api import Array, LearnerState, Metrics
from agents.ops import validate
from agents.settings import Nested, Unread
from envpool_bridge.errors import UserError

Kind = Literal["constant", "linear", "cosine", "exponential"]
Schedule = Callable[[Array], Array]
"""Function of `num_updates` (int32 scalar) that returns a float32 scalar."""
Schedules = Mapping[str, Callable[[Any], Any]]
"""Schedules by the names of the metrics that report their values."""


@dataclasses.dataclass(frozen=True)
class ScheduleConfig(Nested):
    """Change of a hyper-parameter over the updates of a run.

    Attributes:
        kind: Decay from the initial value: "constant", "linear", "cosine" or "exponential".
        end: Value at the end of the run, as a fraction of the initial value; not of "constant"; "exponential" needs it above 0.
        warmup: Fraction of the updates over which the value first rises linearly from 0 to the initial value.
    """

    kind: Kind = "constant"
    end: float = 0.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        validate.choices(self)
        validate.not_negative(self, "end")
        validate.fraction(self, "warmup", below_one=True)
        if self.kind == "exponential" and self.end == 0.0:
            raise UserError("an exponential schedule never reaches 0: expected end above 0, for example 0.01, got 0")

    def unread(self) -> Unread:
        """Returns the rules for fields without effect."""
        yield self.kind == "constant", "kind is 'constant'", "end"


CONSTANT = ScheduleConfig()


def make_schedule(config: ScheduleConfig, initial: float, total_updates: int) -> optax.Schedule:
    """Returns a function of `num_updates` that starts at `initial` (or at 0 with a warm-up) and stays at its end.

    Examples:
        >>> rate = make_schedule(ScheduleConfig("linear"), initial=0.5, total_updates=4)
        >>> [float(rate(number)) for number in (0, 1, 4, 9)]
        [0.5, 0.375, 0.0, 0.0]

    Args:
        config: Shape of the schedule.
        initial: Value before the decay.
        total_updates: Updates of the whole run.

    Raises:
        UserError: If the schedule changes over a run of unknown length.
    """
    if config == CONSTANT or (config.kind == "constant" and not config.warmup):
        return optax.constant_schedule(initial)
    if total_updates < 1:
        raise UserError(
            f"a schedule of kind {config.kind!r} with warmup={config.warmup} needs the total number of updates: got "
            f"total_updates={total_updates}; set it, or use a constant schedule without a warm-up"
        )
    fraction = _fraction(config, total_updates)
    # A product, so that a float and an array of its value give the same results bit for bit.
    return lambda num_updates: initial * fraction(num_updates)


def make_schedules(config: Any, *names: str) -> Schedules:
    """Returns the schedules of fields `name` by the fields `name_schedule` and `total_updates`; raises UserError as above."""
    return {
        name: make_schedule(getattr(config, f"{name}_schedule"), getattr(config, name), config.total_updates)
        for name in names
    }


def learning_rates(config: Any, *names: str) -> Schedules:
    """Returns the learning rates of networks, by fields `NAME_learning_rate`, `learning_rate_schedule` and `total_updates`."""
    schedule, total = config.learning_rate_schedule, config.total_updates
    return {name: make_schedule(schedule, getattr(config, f"{name}_learning_rate"), total) for name in names}


def linear(start: float, end: float, length: float) -> Schedule:
    """Returns the schedule from `start` to `end` over the first `length` updates."""

    def value(num_updates: Array) -> Array:
        passed = jnp.clip(jnp.asarray(num_updates, jnp.float32) / length, 0.0, 1.0)
        return start + (end - start) * passed

    return value


def sync_scheduled(name: str, schedule: Callable[[Any], Any], state: LearnerState) -> LearnerState:
    """Returns the state whose parameter `name` is the schedule's value at its number of updates."""
    value = jnp.asarray(schedule(state.num_updates), jnp.float32)
    return dataclasses.replace(state, params={**state.params, name: value})


def _fraction(config: ScheduleConfig, total_updates: int) -> optax.Schedule:
    """Returns the value as a fraction of the initial one, as a function of `num_updates`."""
    rising = round(config.warmup * total_updates)
    decay = _decay(config, max(total_updates - rising, 1))
    return optax.join_schedules([optax.linear_schedule(0.0, 1.0, rising), decay], [rising]) if rising else decay


def _decay(config: ScheduleConfig, num_updates: int) -> optax.Schedule:
    if config.kind == "linear":
        line = optax.linear_schedule(1.0, config.end, num_updates)
        # Exactly at the end: compiled divisions can round to either side of 0.
        return lambda count: jnp.where(jnp.asarray(count) >= num_updates, config.end, line(count))
    if config.kind == "cosine":
        return optax.cosine_decay_schedule(1.0, num_updates, alpha=config.end)
    if config.kind == "exponential":
        return optax.exponential_decay(1.0, num_updates, decay_rate=config.end, end_value=config.end)
    return optax.constant_schedule(1.0)


def adapt_rate_scale(scale: Array, kl: Array, target: float, learning_rate: Array | float) -> Array:
    """Returns the learning rate's factor after an update: divided by 1.5 after too large a KL, multiplied after too small a one.

    Args:
        scale: float32 scalar, the factor before.
        kl: float32 scalar, mean approximate KL of the update, nats. 0, where no step counted, keeps the factor.
        target: Expected KL, nats. Too large is above twice, too small below half of it.
        learning_rate: Learning rate without the factor, positive. The product stays in [1e-6, 1e-2].
    """
    smaller, larger = kl > 2.0 * target, (kl > 0.0) & (kl < 0.5 * target)
    factor = jnp.where(smaller, 1.0 / 1.5, jnp.where(larger, 1.5, 1.0))
    rate = jnp.asarray(learning_rate, jnp.float32)
    return jnp.where(smaller | larger, jnp.clip(scale * factor * rate, 1e-6, 1e-2) / rate, scale)


class RateState(NamedTuple):
    """Attributes: rate_factor: float32 scalar that multiplies the learning rate; 1 unless it was changed while the run trains."""

    rate_factor: Array


def scale_by_schedule(rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Scales updates by minus the learning rate of the update that they are part of.

    The rate is a function of the argument `num_updates` of the transformation's `update`. `optax.scale_by_schedule` counts the
    steps taken instead, which differs where steps are skipped or replicas share an optimizer. The optional argument `rate_scale`
    and the state's factor multiply the rate.
    """

    def update(
        updates: optax.Updates, state: RateState, params: optax.Params | None = None, **arguments: Any
    ) -> tuple[optax.Updates, RateState]:
        del params
        factor = -jnp.asarray(rate(arguments["num_updates"]), jnp.float32) * state.rate_factor
        if "rate_scale" in arguments:
            factor *= arguments["rate_scale"]
        return jax.tree.map(lambda update: factor * update, updates), state

    def init(_: optax.Params) -> RateState:
        return RateState(jnp.ones((), jnp.float32))

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def init_factors(*names: str) -> dict[str, Array]:
    """Returns a factor of 1 for each hyper-parameter, named "NAME_factor": entries of `LearnerState.extra`."""
    return {f"{name}_factor": jnp.ones(()) for name in names}


def get_factors(tree: Any) -> dict[str, Array]:
    """Returns the factors in a tree of optimizer states and extras by name, of several with a name the first.

    A factor is a scalar whose name ends with "_factor". It multiplies a hyper-parameter, and is 1 unless it was changed while the
    run trains: "learning_rate_factor", "entropy_coef_factor".
    """
    factors: dict[str, Array] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        factors.setdefault(factor_name(path, leaf), leaf)
    factors.pop("", None)
    return factors


def set_factor(tree: Any, name: str, value: float) -> Any:
    """Returns the tree with this value of every factor of a name."""

    def change(path: Any, leaf: Any) -> Any:
        return jnp.full_like(leaf, value) if factor_name(path, leaf) == name else leaf

    return jax.tree_util.tree_map_with_path(change, tree)


def factor_name(path: tuple[Any, ...], leaf: Any) -> str:
    """Returns the name of a factor by its path in a tree; "" for another leaf."""
    name = str(getattr(path[-1], "name", getattr(path[-1], "key", ""))) if path else ""
    if name == "rate_factor":
        return "learning_rate_factor"
    return name if name.endswith("_factor") and jnp.ndim(leaf) == 0 else ""


def current_values(schedules: Schedules, num_updates: Array) -> Metrics:
    """Returns the present values by name, as metrics."""
    return {name: jnp.asarray(schedule(num_updates), jnp.float32) for name, schedule in schedules.items()}
