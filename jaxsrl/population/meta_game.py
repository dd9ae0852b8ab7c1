"""Mixtures of policies that solve a game whose payoffs between policies are known: the meta-game of PSRO.

Payoffs of N players are N arrays [A_1, ..., A_N]: payoffs[n][a_1, ..., a_N] is what player n gets when each player uses the policy
of its index.
"""

from collections.abc import Callable, Sequence

import numpy as np
import scipy.optimize

from envpool_bridge.errors import UserError

Solver = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""Maps payoffs of N players to a distribution [A_n] for each."""


def uniform(payoffs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns equal probabilities of all policies: PSRO is then fictitious self-play."""
    return [np.full(count, 1.0 / count) for count in payoffs[0].shape]


def nash(payoffs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns a Nash equilibrium of two players whose payoffs sum to zero, by linear programming.

    Raises:
        UserError: If there are more players, or the payoffs do not sum to zero.
    """
    if len(payoffs) != 2 or not np.allclose(payoffs[0] + payoffs[1], 0.0, atol=1e-6):
        raise UserError(
            "a linear program solves games of two players whose payoffs sum to zero: use projected_replicator_dynamics or "
            "regret_matching for others"
        )
    return [_maximin(payoffs[0]), _maximin(payoffs[1].T)]


def _maximin(payoff: np.ndarray) -> np.ndarray:
    """Returns the distribution over rows of the highest guaranteed payoff."""
    rows, columns = payoff.shape
    # Variables are the probabilities and the guaranteed payoff v: v - sum_i x_i payoff[i, j] <= 0 for every column j.
    result = scipy.optimize.linprog(
        np.append(np.zeros(rows), -1.0),
        A_ub=np.hstack([-payoff.T, np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=np.ones(1),
        bounds=[(0.0, 1.0)] * rows + [(None, None)],
        method="highs",
    )
    if not result.success:
        raise RuntimeError(f"the linear program of a {rows} x {columns} game failed: {result.message}")
    return _normalized(result.x[:-1])


def projected_replicator_dynamics(
    payoffs: Sequence[np.ndarray], num_steps: int = 50_000, step_size: float = 1e-3, least: float = 1e-6
) -> list[np.ndarray]:
    """Returns the mean distributions of replicator dynamics with a least probability.

    Source: Lanctot et al. 2017 (PSRO, arXiv:1711.00832), section 3.

    Args:
        payoffs: Payoffs of all players.
        num_steps: Euler steps.
        step_size: Step size of each.
        least: smallest probability of a policy, times the number of policies.
    """
    now = uniform(payoffs)
    total = [np.zeros_like(each) for each in now]
    for _ in range(num_steps):
        values = policy_values(payoffs, now)
        changes = [x * (value - x @ value) for x, value in zip(now, values, strict=True)]
        now = [_project(x + step_size * dx, least / len(x)) for x, dx in zip(now, changes, strict=True)]
        for mean, x in zip(total, now, strict=True):
            mean += x
    return [_normalized(mean) for mean in total]


def _project(point: np.ndarray, least: float) -> np.ndarray:
    """Returns the nearest distribution whose entries are at least `least` (Duchi et al. 2008)."""
    room = 1.0 - least * len(point)
    descending = np.sort(point - least)[::-1]
    excess = (np.cumsum(descending) - room) / np.arange(1, len(point) + 1)
    kept = np.flatnonzero(descending > excess)[-1]
    return np.maximum(point - least - excess[kept], 0.0) + least


def regret_matching(payoffs: Sequence[np.ndarray], num_steps: int = 50_000, least: float = 1e-6) -> list[np.ndarray]:
    """Returns the mean distributions of regret matching (Hart and Mas-Colell 2000), in expectation over the other players.

    Args:
        payoffs: Payoffs of all players.
        num_steps: repetitions.
        least: share of the uniform distribution in each distribution.
    """
    now = uniform(payoffs)
    start = [each.copy() for each in now]
    # Regrets begin with a preference, without which a symmetric game stays where it starts.
    regrets = [np.arange(len(each), 0, -1.0) / len(each) for each in now]
    total = [np.zeros_like(each) for each in now]
    for _ in range(num_steps):
        for player, regret in enumerate(regrets):
            positive = np.maximum(regret, 0.0)
            matched = positive / positive.sum() if positive.sum() > 0.0 else start[player]
            now[player] = least * start[player] + (1.0 - least) * matched
        values = policy_values(payoffs, now)
        for player, value in enumerate(values):
            regrets[player] += value - now[player] @ value
            total[player] += now[player]
    return [_normalized(mean) for mean in total]


def policy_values(payoffs: Sequence[np.ndarray], mixtures: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns for each player the expected payoffs [A_n] of its policies against the others' mixtures."""
    values = []
    for player, payoff in enumerate(payoffs):
        value = np.moveaxis(payoff, player, 0)
        for other in reversed([mixture for number, mixture in enumerate(mixtures) if number != player]):
            value = value @ other
        values.append(value)
    return values


def nash_conv(payoffs: Sequence[np.ndarray], mixtures: Sequence[np.ndarray]) -> float:
    """Returns the sum over players of what a best single policy gains; 0 in a Nash equilibrium of the meta-game."""
    values = policy_values(payoffs, mixtures)
    return float(sum(value.max() - mixture @ value for value, mixture in zip(values, mixtures, strict=True)))


def nash_average(advantage: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the Nash equilibrium of highest entropy, [P], and the ratings [P] of all players against it.

    Players that only beat weak ones get no credit, and copies of a player change nothing.
    Source: Balduzzi et al. 2018 (arXiv:1806.02643).

    Args:
        advantage: [P, P] antisymmetric: expected points of i against j, minus one half.

    Raises:
        UserError: If the array is not antisymmetric.
    """
    if not np.allclose(advantage, -advantage.T, atol=1e-6):
        raise UserError("expected an antisymmetric array: points of i against j minus one half")
    count, guaranteed = len(advantage), _maximin(advantage)

    def negative_entropy(x: np.ndarray) -> float:
        return float(np.sum(x * np.log(np.maximum(x, 1e-12))))

    result = scipy.optimize.minimize(
        negative_entropy,
        0.5 * guaranteed + 0.5 / count,
        jac=lambda x: np.log(np.maximum(x, 1e-12)) + 1.0,
        bounds=[(0.0, 1.0)] * count,
        constraints=[
            {"type": "eq", "fun": lambda x: x.sum() - 1.0, "jac": lambda x: np.ones(count)},
            {"type": "ineq", "fun": lambda x: x @ advantage + 1e-9, "jac": lambda x: advantage.T},
        ],
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    mixture = _normalized(result.x) if result.success else guaranteed
    return mixture, advantage @ mixture


def _normalized(distribution: np.ndarray) -> np.ndarray:
    positive = np.maximum(distribution, 0.0)
    return positive / positive.sum()


SOLVERS: dict[str, Solver] = {
    "nash": nash,
    "uniform": uniform,
    "replicator_dynamics": projected_replicator_dynamics,
    "regret_matching": regret_matching,
}
"""Solvers by the names that configurations use."""
