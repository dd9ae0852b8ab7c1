"""Policy-space response oracles (PSRO): sets of policies that grow by best responses to mixtures of each other.

Source: Lanctot et al. 2017 (arXiv:1711.00832). With `meta_game.uniform` it is fictitious self-play, with `nash` the double oracle.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.population.meta_game import Solver, nash

P = TypeVar("P")
Respond = Callable[[int, Sequence[Sequence[P]], Sequence[np.ndarray]], P]
"""Maps a player, all players' policies and their mixtures to a policy that is good against the others' mixtures."""
Payoff = Callable[[Sequence[P]], Sequence[float]]
"""Maps one policy of each player to the expected payoff of each."""


@dataclasses.dataclass(frozen=True)
class PolicySets(Generic[P]):
    """Policies of N players, and how they fare.

    Attributes:
        policies: Policies of each player, in the order in which they were added.
        payoffs: N arrays [A_1, ..., A_N], as `meta_game` takes them.
        mixtures: a distribution [A_n] for each player.
    """

    policies: tuple[tuple[P, ...], ...]
    payoffs: tuple[np.ndarray, ...]
    mixtures: tuple[np.ndarray, ...]


def start_psro(first: Sequence[P], payoff: Payoff[P], solve: Solver = nash) -> PolicySets[P]:
    """Returns the sets with one policy for each player.

    Raises:
        UserError: If there are fewer than two players.
    """
    if len(first) < 2:
        raise UserError(f"a game has at least two players: got {len(first)}")
    return _extend(tuple((policy,) for policy in first), None, payoff, solve)


def add_responses(sets: PolicySets[P], respond: Respond[P], payoff: Payoff[P], solve: Solver = nash) -> PolicySets[P]:
    """Returns the sets after one iteration: each player has a response more to the mixtures of before.

    Only games with new policies are played.
    """
    new = [respond(player, sets.policies, sets.mixtures) for player in range(len(sets.policies))]
    grown = tuple((*known, policy) for known, policy in zip(sets.policies, new, strict=True))
    return _extend(grown, sets, payoff, solve)


def _extend(
    policies: tuple[tuple[P, ...], ...], before: PolicySets[P] | None, payoff: Payoff[P], solve: Solver
) -> PolicySets[P]:
    shape = tuple(len(known) for known in policies)
    payoffs = tuple(np.zeros(shape) for _ in policies)
    known_shape = before.payoffs[0].shape if before is not None else (0,) * len(shape)
    for place in itertools.product(*map(range, shape)):
        if before is not None and all(index < size for index, size in zip(place, known_shape, strict=True)):
            values: Sequence[float] = [known[place] for known in before.payoffs]
        else:
            values = payoff([policies[player][index] for player, index in enumerate(place)])
        for array, value in zip(payoffs, values, strict=True):
            array[place] = value
    return PolicySets(policies, payoffs, tuple(solve(payoffs)))
