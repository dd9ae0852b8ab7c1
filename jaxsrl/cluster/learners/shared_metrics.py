"""Metrics that learner processes send to process 0. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxsrl.collect.collector import SUPERVISION_METRICS
from jaxsrl.metrics.cluster_traffic import PREFIX


def merge_episodes(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merges the episode metrics (`EpisodeTracker.metrics`) of all processes.

    Counts and sums add up, the largest is the largest of all, and means are means of the processes' means, each of which is over
    that process's last 100 episodes. Processes whose first episode has not ended do not count.
    """
    known = [metrics for metrics in each if metrics]
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for metrics in known for name in metrics):
        values = [metrics[name] for metrics in known if name in metrics]
        if name.endswith(("count", "_sum")):
            merged[name] = sum(values)
        elif name.endswith("_max"):
            merged[name] = max(values)
        else:
            merged[name] = sum(values) / len(values)
    return merged


def process_metrics(sent: Mapping[int, Mapping[str, Any]]) -> dict[str, float]:
    """Returns `learner_process/<id>/...`: env steps per second, and shares of time waited for its own rows and for the others."""
    return {
        f"learner_process/{process}/{name}": value
        for process, message in sorted(sent.items())
        for name, value in message.get("process", {}).items()
    }


def summable_totals(totals: Mapping[str, float]) -> dict[str, float]:
    """Returns the totals that add up over processes: counts of failures, and traffic of the hosts on a cluster."""
    return {
        name: value for name, value in totals.items() if name in SUPERVISION_METRICS.values() or name.startswith(PREFIX)
    }


def add_totals(own: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the totals of a process plus those that others sent (`summable_totals`)."""
    sums = dict(own)
    for totals in others:
        for name, value in totals.items():
            sums[name] = sums.get(name, 0.0) + value
    return sums
