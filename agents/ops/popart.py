"""PopArt: value targets normalized by their running moments, without moving what the value predicts. Pure functions.

A network with PopArt predicts normalized values n; the value is v = s n + m, with the targets' running mean m and deviation s.
When m and s change, the last layer of the value, n = W x + b, is rescaled so that v stays what it was:

    W' = (s / s') W        b' = (s b + m - m') / s'

Source: van Hasselt et al. 2016 (arXiv:1602.07714), algorithm 1 and section 2.1; Hessel et al. 2019 (arXiv:1809.04474), eq. 5.

Use by an agent:

1. `init()` is part of `LearnerState.extra` (`agents/ppo.py`), so it is saved with the layer that it belongs to. It has no gradient
   and no optimizer state. It is not published with the parameters: `act` needs no values.
2. Before the gradients: `denormalize` the network's values, then advantages and targets in reward units. The moments
   `target_moments(targets, weight)` have no rows, so they can travel to a parameter server.
3. The loss: the error between the network's output and `normalize(statistics, targets)`, with the statistics before the batch.
   Old values that clip it are normalized, too.
4. After the gradients: `new = merge(old, moments, beta)` of the newest `extra`, and `rescale(params, old, new)` of the newest
   parameters.

Deviations from the papers, on purpose:

- A batch is one step of the running moments, with all its targets together; the papers take a step for each.
- Targets are normalized by the statistics before their own batch, which apply from the next version on, as observations are in
  `agents/transforms/normalization.py`. The papers update the statistics first. Here the first update is not normalized.
- The optimizer's moments of the rescaled layer stay as they are. After a change of s by a factor c they are off by c (first) and
  c^2 (second) until these gradients have decayed. The papers use plain gradient descent and RMSProp, and do the same.
- Moments are debiased, so that the initial (0, 1) has no weight in them. They are kept as mean and variance: the same as first and
  second moment in exact arithmetic, without the cancellation in E[x^2] - E[x]^2.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from agents.api import Array, Params
from agents.ops.returns import weighted_mean
from envpool_bridge.errors import UserError

SMALLEST_DEVIATION = 1e-2
"""Lower bound of s, reward units: constant targets must not make their errors infinite. Hessel et al. have 1e-4."""
LARGEST_DEVIATION = 1e6
"""Upper bound of s, as Hessel et al. have it."""

_VALUE_LAYERS = (
    ("critic", "params", "head", "Dense_0"),
    ("critic", "head", "params", "head", "Dense_0"),
    ("shared", "params", "value", "Dense_0"),
    ("shared", "head", "params", "value", "Dense_0"),
)
"""Where `agents/networks/actor_critic.py` has the value's last layer: torsos apart or shared, without and with memory."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PopArt:
    """Running moments of value targets.

    Attributes:
        mean: float32 scalar, debiased, reward units; 0 before the first target.
        variance: float32 scalar, debiased, squared reward units.
        debias: float32 scalar, 1 - (1 - beta)^n after n batches: the weight of all batches in a running moment that starts at 0.
    """

    mean: Array
    variance: Array
    debias: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TargetMoments:
    """Moments of the targets of one batch.

    Attributes:
        mean: float32 scalar, reward units.
        variance: float32 scalar, squared reward units.
        counts: float32 scalar, 1 if any target had a positive weight, else 0.
    """

    mean: Array
    variance: Array
    counts: Array


def init() -> PopArt:
    """Returns the moments before the first target: values are the outputs of the network."""
    return PopArt(*(jnp.zeros((), jnp.float32) for _ in range(3)))


def target_moments(targets: Array, weight: Array) -> TargetMoments:
    """Returns the moments of a batch.

    Args:
        targets: [T, B] float32, reward units.
        weight: [T, B], >= 0; targets of weight 0 may be anything.
    """
    mean = weighted_mean(targets, weight)
    counts = (jnp.sum(weight) > 0).astype(jnp.float32)
    return TargetMoments(mean, weighted_mean(jnp.square(targets - mean), weight), counts)


def merge(statistics: PopArt, batch: TargetMoments, beta: float) -> PopArt:
    """Returns statistics that include the moments of a batch; nothing changes where all its weights were 0.

    Args:
        statistics: Moments so far.
        batch: Moments of the batch.
        beta: step size in (0, 1]: the share of this batch in the moments, if there have been many.
    """
    step = beta * batch.counts
    debias = statistics.debias + step * (1.0 - statistics.debias)
    share = step / jnp.where(debias > 0, debias, 1.0)
    difference = batch.mean - statistics.mean
    variance = (1.0 - share) * statistics.variance + share * (batch.variance + (1.0 - share) * jnp.square(difference))
    return PopArt(statistics.mean + share * difference, variance, debias)


def deviation(statistics: PopArt) -> Array:
    """Returns the float32 scalar s > 0 within its bounds, reward units; 1 before the first target."""
    bounded = jnp.clip(jnp.sqrt(statistics.variance), SMALLEST_DEVIATION, LARGEST_DEVIATION)
    return jnp.where(statistics.debias > 0, bounded, 1.0)


def normalize(statistics: PopArt, value: Array) -> Array:
    """Returns (v - m) / s of values or targets [...] in reward units."""
    return (value - statistics.mean) / deviation(statistics)


def denormalize(statistics: PopArt, normalized: Array) -> Array:
    """Returns values [...] in reward units, s n + m, of outputs of the network."""
    return deviation(statistics) * normalized + statistics.mean


def rescale(params: Params, old: PopArt, new: PopArt) -> Params:
    """Returns parameters whose values, denormalized by `new`, are those of `params` by `old`; only the value's last layer changes.

    Args:
        params: Parameters of a network of `agents/networks/actor_critic.py`.
        old: Statistics that its outputs were normalized by.
        new: Statistics that they will be normalized by.

    Raises:
        UserError: If the value's last layer is not in its place; the message lists the parameters.
    """
    path = value_layer(params)
    layer, before, after = _at(params, path), deviation(old), deviation(new)
    rescaled = {
        "kernel": layer["kernel"] * (before / after),
        "bias": (before * layer["bias"] + old.mean - new.mean) / after,
    }
    return _replaced(params, path, rescaled)


def value_layer(params: Params) -> tuple[str, ...]:
    """Returns the keys of the value's last layer, `{"kernel": [H, 1], "bias": [1]}`.

    Raises:
        UserError: If it is not where `agents/networks/actor_critic.py` has it, or has several outputs; the message lists the
            parameters.
    """
    paths = [path for path in _VALUE_LAYERS if _at(params, path) is not None]
    if len(paths) == 1:
        layer = _at(params, paths[0])
        if isinstance(layer, Mapping) and set(layer) == {"kernel", "bias"} and layer["bias"].shape == (1,):
            return paths[0]
    expected = ", ".join("/".join(path) for path in _VALUE_LAYERS)
    raise UserError(
        f"PopArt rescales the value's last layer: expected exactly one kernel [H, 1] and bias [1], at one of {expected}; got "
        f"{_shown(params)}; use a network of agents/networks/actor_critic.py, or turn PopArt off"
    )


def _at(params: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        params = params.get(key) if isinstance(params, Mapping) else None
    return params


def _replaced(params: Any, path: tuple[str, ...], layer: Any) -> Any:
    """Returns a copy with `layer` at `path`; `params` itself is not changed."""
    return {**params, path[0]: _replaced(params[path[0]], path[1:], layer)} if path else layer


def _shown(params: Any) -> str:
    shapes = [
        f"{jax.tree_util.keystr(path, simple=True, separator='/')} {list(jnp.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]
    return ", ".join(shapes) or "no parameters"
