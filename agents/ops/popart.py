"""PopArt: value targets normalized by their running moments, without moving what the value predicts. Pure functions.

A network with PopArt predicts normalized values n; the value is v = s n + m, with the targets' running mean m and deviation s.
When m and s change, the last layer of the value, n = W x + b, is rescaled so that v stays what it was:

    W' = (s / s') W        b' = (s b + m - m') / s'

Source: van Hasselt et al. 2016 (arXiv:1602.07714), algorithm 1 and section 2.1; Hessel et al. 2019 (arXiv:1809.04474), eq. 5.

How an agent uses it, cut into gradient steps or not:

1. `init()` is part of `LearnerState.extra` (`agents/ppo.py`), so that it is saved with the layer that it belongs to; no gradient
   is of it, and no optimizer has a state for it. It is not published with the parameters: `act` needs no values.
2. `prepare`: `denormalize` the network's values, then advantages and targets as ever, in reward units. The summary takes
   `target_moments(targets, weight)` along, which have no rows, so that they can travel to a parameter server.
3. The loss: the error between the network's output and `normalize(statistics, targets)`, which `prepare` computes with the
   statistics that it was given. What is clipped around old values is normalized, too.
4. `finish`: `new = merge(old, moments, beta)` of the newest `extra`, and `rescale(params, old, new)` of the newest parameters.

Deviations from the papers, on purpose:

- A batch is one step of the running moments, with all its targets together; the papers take a step for each.
- Targets are normalized by the statistics before their own batch, which apply from the next version on, as observations are in
  `agents/transforms/normalization.py`. The papers update the statistics first. Here the first update is not normalized.
- The optimizer's moments of the rescaled layer are left as they are: after a change of s by a factor c they are off by c (first)
  and c^2 (second) until they have forgotten. The papers use plain gradient descent and RMSProp, and leave them alone as well.
- Moments are debiased, so that the beginning (0, 1) of the statistics has no part in them; and kept as mean and variance, which
  is the same in exact arithmetic as first and second moment, without the cancellation in E[x^2] - E[x]^2.
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
        debias: float32 scalar, 1 - (1 - beta)^n after n batches: how much of a running moment from 0 would be there by now.
    """

    mean: Array
    variance: Array
    debias: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TargetMoments:
    """Of the targets of one batch.

    Attributes:
        mean: float32 scalar, reward units.
        variance: float32 scalar, squared reward units.
        counts: float32 scalar, 1 if any target had a positive weight, else 0.
    """

    mean: Array
    variance: Array
    counts: Array


def init() -> PopArt:
    """Before the first target: values are what the network says."""
    return PopArt(*(jnp.zeros((), jnp.float32) for _ in range(3)))


def update(statistics: PopArt, targets: Array, weight: Array, beta: float) -> PopArt:
    """Statistics that include a batch: `merge(statistics, target_moments(targets, weight), beta)`.

    Args:
        statistics: so far.
        targets: [T, B] float32, reward units.
        weight: [T, B], >= 0; targets of weight 0 may be anything, and where all weights are 0 nothing changes.
        beta: step size in (0, 1]: the share of this batch in the moments, if there have been many.
    """
    return merge(statistics, target_moments(targets, weight), beta)


def target_moments(targets: Array, weight: Array) -> TargetMoments:
    """What a batch says; arguments as those of `update`."""
    mean = weighted_mean(targets, weight)
    counts = (jnp.sum(weight) > 0).astype(jnp.float32)
    return TargetMoments(mean, weighted_mean(jnp.square(targets - mean), weight), counts)


def merge(statistics: PopArt, batch: TargetMoments, beta: float) -> PopArt:
    """Statistics that include what a batch said; `beta` as in `update`."""
    step = beta * batch.counts
    debias = statistics.debias + step * (1.0 - statistics.debias)
    share = step / jnp.where(debias > 0, debias, 1.0)
    difference = batch.mean - statistics.mean
    variance = (1.0 - share) * statistics.variance + share * (batch.variance + (1.0 - share) * jnp.square(difference))
    return PopArt(statistics.mean + share * difference, variance, debias)


def deviation(statistics: PopArt) -> Array:
    """Float32 scalar s > 0 within its bounds, reward units; 1 before the first target."""
    bounded = jnp.clip(jnp.sqrt(statistics.variance), SMALLEST_DEVIATION, LARGEST_DEVIATION)
    return jnp.where(statistics.debias > 0, bounded, 1.0)


def normalize(statistics: PopArt, value: Array) -> Array:
    """(v - m) / s of values or targets [...] in reward units."""
    return (value - statistics.mean) / deviation(statistics)


def denormalize(statistics: PopArt, normalized: Array) -> Array:
    """Values [...] in reward units, s n + m, of what the network says."""
    return deviation(statistics) * normalized + statistics.mean


def rescale(params: Params, old: PopArt, new: PopArt) -> Params:
    """Parameters whose values, denormalized by `new`, are those of `params` by `old`; only the value's last layer changes.

    Args:
        params: of a network of `agents/networks/actor_critic.py`.
        old: what its outputs were normalized by.
        new: what they are to be normalized by.

    Raises:
        UserError: the value's last layer is not where it should be; names what is there.
    """
    path = value_layer(params)
    layer, before, after = _at(params, path), deviation(old), deviation(new)
    rescaled = {
        "kernel": layer["kernel"] * (before / after),
        "bias": (before * layer["bias"] + old.mean - new.mean) / after,
    }
    return _replaced(params, path, rescaled)


def value_layer(params: Params) -> tuple[str, ...]:
    """Keys of the value's last layer, `{"kernel": [H, 1], "bias": [1]}`.

    Raises:
        UserError: there is none where `agents/networks/actor_critic.py` has it, or it is none of one output; names what is there.
    """
    found = [path for path in _VALUE_LAYERS if _at(params, path) is not None]
    if len(found) == 1:
        layer = _at(params, found[0])
        if isinstance(layer, Mapping) and set(layer) == {"kernel", "bias"} and layer["bias"].shape == (1,):
            return found[0]
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
    """A copy with `layer` at `path`; `params` itself is not written to."""
    return {**params, path[0]: _replaced(params[path[0]], path[1:], layer)} if path else layer


def _shown(params: Any) -> str:
    found = [
        f"{jax.tree_util.keystr(path, simple=True, separator='/')} {list(jnp.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]
    return ", ".join(found) or "no parameters"
