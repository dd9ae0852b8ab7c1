"""Tasks of rows that differ on purpose, and the task of each environment."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from math import lcm


@dataclasses.dataclass(frozen=True)
class Task:
    """One kind of environment among several with equal spaces.

    Attributes:
        name: name in metrics.
        share: part of all environments, relative to the other tasks' shares.
    """

    name: str
    share: float = 1.0


def assign_tasks(tasks: Sequence[Task], num_envs: int) -> list[int]:
    """Returns the index of the task of each of the environments 0 to `num_envs` - 1.

    Each environment gets the task that is furthest behind its share, the first of equals. Equal shares are a round robin.
    The task of an environment does not depend on `num_envs`.
    """
    shares = [Fraction(task.share) for task in tasks]
    scale = lcm(*(share.denominator for share in shares))
    weights = [int(share * scale) for share in shares]
    total, counts, assigned = sum(weights), [0] * len(tasks), []
    for env in range(num_envs):
        due = [weight * (env + 1) - count * total for weight, count in zip(weights, counts, strict=True)]
        task = due.index(max(due))
        counts[task] += 1
        assigned.append(task)
    return assigned
