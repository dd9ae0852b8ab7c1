"""Skills of players in games between teams, or with more than two sides: a mean and a deviation for each player.

Source: Weng and Lin 2011, "A Bayesian Approximation Method for Online Ranking", algorithm 1 (Bradley-Terry, all pairs).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from envpool_bridge.errors import UserError

MEAN, DEVIATION = 25.0, 25.0 / 3.0
_BETA = DEVIATION / 2.0  # of a performance around the skill
_SMALLEST_SHRINKAGE = 1e-4


@dataclasses.dataclass(frozen=True)
class Skill:
    """Belief about a player's skill.

    Attributes:
        mean: Mean of the belief.
        deviation: Deviation of the belief.
    """

    mean: float = MEAN
    deviation: float = DEVIATION


def update_skills(teams: Sequence[Sequence[Skill]], ranks: Sequence[float], drift: float = 0.0) -> list[list[Skill]]:
    """Returns the skills of all players after one game.

    Args:
        teams: players of each side.
        ranks: Ranks of each side; the smallest has won, equal ranks are a draw.
        drift: tau, deviation by which a skill may have changed since the last game.

    Raises:
        UserError: If there are fewer than two sides, an empty one, or not a rank for each.
    """
    if len(teams) < 2 or len(ranks) != len(teams) or not all(teams):
        raise UserError(
            f"expected at least two teams of players, and a rank for each: got {len(teams)} and {len(ranks)}"
        )
    variances = [[player.deviation**2 + drift**2 for player in team] for team in teams]
    means = [sum(player.mean for player in team) for team in teams]
    sums = [sum(team) for team in variances]
    updated = []
    for own, team in enumerate(teams):
        gain, shrinkage = _compare(own, means, sums, ranks)
        updated.append(
            [
                Skill(
                    player.mean + variance / sums[own] * gain,
                    float(np.sqrt(variance * max(1.0 - variance / sums[own] * shrinkage, _SMALLEST_SHRINKAGE))),
                )
                for player, variance in zip(team, variances[own], strict=True)
            ]
        )
    return updated


def _compare(own: int, means: Sequence[float], sums: Sequence[float], ranks: Sequence[float]) -> tuple[float, float]:
    """Returns Omega and Delta of a team: what its mean gains, and the share by which its variance shrinks."""
    gain = shrinkage = 0.0
    for other in range(len(means)):
        if other == own:
            continue
        scale = np.sqrt(sums[own] + sums[other] + 2.0 * _BETA**2)
        expected = 1.0 / (1.0 + np.exp((means[other] - means[own]) / scale))
        points = 1.0 if ranks[own] < ranks[other] else 0.5 if ranks[own] == ranks[other] else 0.0
        gain += sums[own] / scale * (points - expected)
        gamma = np.sqrt(sums[own]) / scale
        shrinkage += gamma * sums[own] / scale**2 * expected * (1.0 - expected)
    return float(gain), float(shrinkage)
