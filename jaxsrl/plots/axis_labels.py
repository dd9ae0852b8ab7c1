"""Axis labels with units."""

from collections.abc import Iterable

from jaxsrl.plots.run_curve import RunCurve, XAxis

_METRICS = {
    "episode/return_mean": "training return (reward units)",
    "eval/return_mean": "evaluation return (reward units)",
    "episode/return_max": "largest episode return (reward units)",
    "episode/length_mean": "episode length (env steps)",
    "episode/seconds_mean": "episode duration (s)",
    "episode/count": "episodes",
    "speed/env_steps_per_second": "speed (env steps/s)",
    "inference/batch_rows": "inference batch (rows)",
    "inference/latency_ms": "inference latency (ms)",
    "policy/lag_mean": "mean policy lag (updates)",
    "policy/lag_max": "largest policy lag (updates)",
}
_SHARES = "utilization/"
_SPANS = ((2 * 3600.0, 3600.0, "h"), (2 * 60.0, 60.0, "min"))


def metric_label(metric: str) -> str:
    """Returns the description of a metric with its unit, or its name if it has none here."""
    if metric.startswith(_SHARES):
        return f"{metric} (share of time)"
    return _METRICS.get(metric, metric)


def x_label(x: XAxis, longest: float, curves: Iterable[RunCurve]) -> tuple[str, float]:
    """Returns the label of the x axis of curves, and the divisor of its values, for values up to `longest`."""
    if x == "steps":
        return " or ".join(sorted({curve.step_unit for curve in curves})), 1.0
    if x == "frames":
        return "emulator frames", 1.0
    size, unit = next(((size, unit) for least, size, unit in _SPANS if longest >= least), (1.0, "s"))
    return f"training time ({unit})", size
