"""Population based training: who copies whom, and how copied hyper-parameters change. Pure functions of numbers.

Sources: Jaderberg et al. 2017 (arXiv:1711.09846), truncation selection and perturbation; the rule of Sample Factory (Petrenko et
al. 2020, arXiv:2006.11751), as its documentation gives it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.tune.space import Choices, Range, Space

Rule = Literal["truncation", "sample_factory", "none"]


@dataclasses.dataclass(frozen=True)
class PBTConfig:
    """Rule of a population.

    Attributes:
        rule: "truncation": the worst members copy one of the best, and only copied values change. "sample_factory": as well, values
            of all but the best change, and a copy needs a gap between scores. "none": nothing changes.
        share: Share of the members that are the worst, and that are the best.
        factors: truncation: a value is multiplied by one of them.
        resample: truncation: probability that a value is drawn again instead.
        mutation_rate: sample_factory: probability that a value changes.
        largest_factor: sample_factory: a value is multiplied or divided by a number from 1.1 to this one.
        least_gap: sample_factory: gap between scores below which nothing is copied, as a share of the larger one.
    """

    rule: Rule = "truncation"
    share: float = 0.25
    factors: tuple[float, float] = (0.8, 1.2)
    resample: float = 0.25
    mutation_rate: float = 0.15
    largest_factor: float = 1.5
    least_gap: float = 0.1

    def __post_init__(self) -> None:
        if self.rule not in ("truncation", "sample_factory", "none"):
            raise UserError(f"rule must be truncation, sample_factory or none: got {self.rule!r}")
        if not 0.0 < self.share <= 0.5:
            raise UserError(f"share of the best and of the worst must lie in (0, 0.5]: got {self.share}")
        if min(self.factors) <= 0.0 or self.largest_factor < 1.1:
            raise UserError(
                f"factors must be positive, and the largest at least 1.1: got {self.factors}, {self.largest_factor}"
            )
        for name in ("resample", "mutation_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"{name} is a probability: got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True)
class Choice:
    """Next step of a member.

    Attributes:
        source: number of the member whose parameters it continues; its own number for its own.
        values: Values of its options.
    """

    source: int
    values: Mapping[str, Any]


def first_values(space: Space, members: int, random: np.random.Generator) -> list[dict[str, Any]]:
    """Returns random values of every option for each member."""
    return [{name: draw(entry, random) for name, entry in space.items()} for _ in range(members)]


def choose(
    config: PBTConfig,
    space: Space,
    scores: Sequence[float],
    values: Sequence[Mapping[str, Any]],
    random: np.random.Generator,
) -> list[Choice]:
    """Returns the choice of each member after a round.

    Args:
        config: the rule.
        space: ranges and choices, which changed values stay in.
        scores: Scores of the members; NaN counts as the worst.
        values: Values of the members in this round.
        random: consumed.
    """
    stay = [Choice(number, dict(own)) for number, own in enumerate(values)]
    if config.rule == "none":
        return stay
    sortable = np.where(np.isnan(scores), -np.inf, np.asarray(scores, float))
    order = np.argsort(-sortable, kind="stable")
    count = max(1, int(config.share * len(order)))
    best, worst = order[:count].tolist(), order[len(order) - count :].tolist()
    choices = stay
    for number in sorted(order[count:].tolist()):
        source = number
        if number in worst:
            candidate = int(random.choice(best))
            source = candidate if _copies(config, float(sortable[number]), float(sortable[candidate])) else number
        if config.rule == "truncation" and source == number:
            continue
        choices[number] = Choice(
            source, {name: _change(config, space[name], values[source][name], random) for name in space}
        )
    return choices


def _copies(config: PBTConfig, score: float, best: float) -> bool:
    if config.rule == "truncation" or not math.isfinite(score):
        return True
    return best - score > max(config.least_gap * max(abs(best), abs(score)), 1e-6)


def _change(config: PBTConfig, entry: Range | Choices, value: Any, random: np.random.Generator) -> Any:
    """Returns a changed value of an option, or the same."""
    if config.rule == "sample_factory":
        if random.random() >= config.mutation_rate:
            return value
        factor = random.uniform(1.1, config.largest_factor)
        factor = factor if random.random() < 0.5 else 1.0 / factor
    else:
        if random.random() < config.resample:
            return draw(entry, random)
        factor = random.choice(config.factors)
    if isinstance(entry, Choices):
        place = entry.values.index(value) + (1 if factor > 1.0 else -1)
        return entry.values[min(max(place, 0), len(entry.values) - 1)]
    return _multiplied(entry, value, factor)


def draw(entry: Range | Choices, random: np.random.Generator) -> Any:
    """Returns a random value of an option."""
    if isinstance(entry, Choices):
        return entry.values[int(random.integers(len(entry.values)))]
    if entry.log:
        return _rounded(entry, math.exp(random.uniform(math.log(entry.low), math.log(entry.high))))
    if entry.spacing is not None:
        return _on_grid(entry, entry.spacing, int(random.integers(_last_index(entry, entry.spacing) + 1)))
    return random.uniform(entry.low, entry.high)


def _multiplied(entry: Range, value: float, factor: float) -> float:
    """Returns the product within the range; on its steps, at least one from the value, since 2 * 1.2 is rounded to 2 again."""
    product = min(max(value * factor, entry.low), entry.high)
    if entry.spacing is None or factor == 1.0:
        return _rounded(entry, product)
    index, before = _index(entry, entry.spacing, product), _index(entry, entry.spacing, value)
    rises = (factor > 1.0) == (value >= 0)  # a negative value falls with a factor above 1
    index = max(index, before + 1) if rises else min(index, before - 1)
    return _on_grid(entry, entry.spacing, min(max(index, 0), _last_index(entry, entry.spacing)))


def _rounded(entry: Range, value: float) -> float:
    """Returns the nearest value of a range: on its steps, and an integer where its ends are."""
    return (
        float(value) if entry.spacing is None else _on_grid(entry, entry.spacing, _index(entry, entry.spacing, value))
    )


def _index(entry: Range, step: float, value: float) -> int:
    return min(round((value - entry.low) / step), _last_index(entry, step))


def _on_grid(entry: Range, step: float, index: int) -> float:
    value = min(entry.low + index * step, entry.high)  # a sum of decimal fractions may be just above the end
    return int(value) if entry.is_integer else float(value)


def _last_index(entry: Range, step: float) -> int:
    return math.floor((entry.high - entry.low) / step + 1e-9)  # 0.3 - 0.1 is just below two steps of 0.1
