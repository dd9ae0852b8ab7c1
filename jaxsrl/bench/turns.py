"""Turns of contenders: short and alternating, so that drift of the machine's speed affects all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Name = TypeVar("Name", bound=str)
Result = TypeVar("Result")


def take_turns(
    contenders: Mapping[Name, Callable[[], Result]], rounds: int, reorder: Callable[[list[Name]], None] | None = None
) -> dict[Name, list[Result]]:
    """Returns the results of every contender: one per round. `reorder` changes their order before each round."""
    results: dict[Name, list[Result]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(rounds):
        if reorder is not None:
            reorder(order)
        for name in order:
            results[name].append(contenders[name]())
    return results


def median_ratio(values: Sequence[float], baseline: Sequence[float]) -> float:
    """Returns the median of the rounds' ratios."""
    return statistics.median(value / base for value, base in zip(values, baseline, strict=True))


def per_second(call: Callable[[], Any], count: int) -> float:
    """Calls once; returns `count` divided by the seconds of the call."""
    start = time.perf_counter()
    call()
    return count / (time.perf_counter() - start)
