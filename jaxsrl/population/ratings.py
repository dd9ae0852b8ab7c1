"""Ratings of players from games between pairs of them: Elo and Bradley-Terry, on Elo's scale.

A player whose rating is 400 higher wins ten times as often as it loses. Draws count as half a win.
"""

import dataclasses

import numpy as np

from envpool_bridge.errors import UserError

SCALE = 400.0 / np.log(10.0)
"""Rating points of a factor e between the odds of winning."""
_MAX_STEPS = 100  # of Newton's method


@dataclasses.dataclass(frozen=True)
class Results:
    """Games between pairs of P players.

    Attributes:
        points: [P, P] float64: points[i, j] is the number of wins of i against j, and half the number of their draws.
    """

    points: np.ndarray

    def __post_init__(self) -> None:
        points = self.points
        if points.ndim != 2 or points.shape[0] != points.shape[1] or not (np.isfinite(points) & (points >= 0)).all():
            raise UserError(f"expected points [P, P] that are not negative: got shape {points.shape}")

    @property
    def games(self) -> np.ndarray:
        """[P, P] number of games of each pair, symmetric."""
        return self.points + self.points.T


@dataclasses.dataclass(frozen=True)
class Ratings:
    """Ratings of P players.

    Attributes:
        rating: [P] float64, with mean 0.
        error: [P] standard errors.
    """

    rating: np.ndarray
    error: np.ndarray


def win_probability(rating: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the expected points of a game: 1 / (1 + 10^(-(rating - other) / 400))."""
    return 1.0 / (1.0 + np.exp((np.asarray(other) - rating) / SCALE))


def update_elo(rating: float, other: float, points: float, step: float = 32.0) -> tuple[float, float]:
    """Returns the ratings of two players after a game between them (Elo 1978).

    Args:
        rating: Rating of the first player.
        other: Rating of the second player.
        points: Points of the first player: 1 for a win, 0.5 for a draw.
        step: K, largest change.
    """
    change = step * (points - float(win_probability(np.asarray(rating), np.asarray(other))))
    return rating + change, other - change


def fit_bradley_terry(results: Results, prior_deviation: float = 800.0) -> Ratings:
    """Returns the most likely ratings under a normal prior, and their standard errors.

    Source: Bradley and Terry 1952; Newton's method on the logarithm of the posterior, errors from its Hessian.

    Args:
        results: Results of all games.
        prior_deviation: Deviation of the prior, in rating points; it keeps the rating of a player who always wins finite.
    """
    points = results.points - np.diag(np.diag(results.points))
    games, count = points + points.T, len(points)
    strength, precision = np.zeros(count), (SCALE / prior_deviation) ** 2  # natural scale

    def derivatives() -> tuple[np.ndarray, np.ndarray]:
        expected = 1.0 / (1.0 + np.exp(strength[None] - strength[:, None]))
        weight = games * expected * (1.0 - expected)
        gradient = (points - games * expected).sum(1) - precision * strength
        return gradient, np.diag(weight.sum(1) + precision) - weight

    for _ in range(_MAX_STEPS):
        gradient, hessian = derivatives()
        change = np.linalg.solve(hessian, gradient)
        strength += np.clip(change, -2.0, 2.0)
        if np.abs(change).max() < 1e-10:
            break
    centered = np.eye(count) - 1.0 / count
    covariance = centered @ np.linalg.inv(derivatives()[1]) @ centered
    return Ratings(SCALE * (strength - strength.mean()), SCALE * np.sqrt(np.diag(covariance)))
