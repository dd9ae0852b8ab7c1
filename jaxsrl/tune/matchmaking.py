"""Matchmaking of a league: opponents of each role, and players that start again. Pure functions of win rates.

Source: Vinyals et al. 2019 (AlphaStar), methods and pseudocode: prioritized fictitious self-play, roles and their shares of games.
Fictitious co-play: Strouse et al. 2021 (arXiv:2110.08176).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

Role = Literal["main_agent", "main_exploiter", "league_exploiter", "best_response"]
_SELF_SHARE, _PAST_SHARE = 0.35, 0.5  # of a main agent's games; the rest is against policies that beat it
LARGEST_SELF_SHARE = 1.0 - _PAST_SHARE
"""Self-play of a main agent that no other policy beats."""
_BEATEN_BY_EXPLOITER, _FORGOTTEN = 0.3, 0.5  # win rates below which they are such
_HOPELESS = 0.2  # an exploiter that wins less starts with earlier main agents
_EXPLOITED = 0.7  # an exploiter that wins more has done its work
_LONGEST = 4  # rounds of an exploiter before it starts again
_RESET = 0.25  # probability that a league exploiter starts again
_LEAST_WEIGHT = 1e-3  # of the largest; smaller ones become 0


@dataclasses.dataclass(frozen=True)
class Entry:
    """A policy of the league: what one run of a player ended with.

    Attributes:
        player: name of the player, such as "main_agent0".
        role: Role of the player.
        age: rounds that it has trained since it started from nothing.
    """

    player: str
    role: Role
    age: int


@dataclasses.dataclass(frozen=True)
class Match:
    """Opponents of a run.

    Attributes:
        self_share: share of the games in which the policy plays itself.
        mixture: probability of each policy by its number, in the other games; empty if there are none.
    """

    self_share: float
    mixture: Mapping[int, float]


ONLY_ITSELF = Match(1.0, {})


def choose_opponents(role: Role, own: int | None, entries: Sequence[Entry], win_rate: np.ndarray) -> Match:
    """Returns the opponents of a player in the next round.

    Args:
        role: Role of the player.
        own: number of its newest policy; None for one that starts from nothing, whose win rates count as one half.
        entries: all P policies, oldest first.
        win_rate: [P, P] probability that policy i beats j, draws half.
    """
    rates = np.full(len(entries), 0.5) if own is None else win_rate[own]
    hard, even = (1.0 - rates) ** 2, rates * (1.0 - rates)
    everyone = np.ones(len(entries), bool)
    match role:
        case "best_response":
            return Match(0.0, _weights(everyone, np.ones(len(entries))))
        case "league_exploiter":
            return Match(0.0, _weights(everyone, hard))
        case "main_exploiter":
            mains = _are(entries, "main_agent")
            newest = mains & _newest(entries)
            is_hopeless = newest.any() and float(rates[newest].mean()) < _HOPELESS
            return Match(0.0, _weights(mains, even) if is_hopeless else _weights(newest, np.ones(len(entries))))
        case "main_agent":
            past = _weights(everyone, hard)
            exploiters = _are(entries, "main_exploiter") & (rates < _BEATEN_BY_EXPLOITER)
            forgotten = _are(entries, "main_agent") & ~_newest(entries) & (rates < _FORGOTTEN)
            losses = _weights(exploiters | forgotten, hard)
            if not losses:  # their share is self-play
                return Match(LARGEST_SELF_SHARE, past)
            share = _PAST_SHARE / (1.0 - _SELF_SHARE)
            mixed = {
                number: share * past.get(number, 0.0) + (1.0 - share) * losses.get(number, 0.0)
                for number in {*past, *losses}
            }
            return Match(_SELF_SHARE, dict(sorted(mixed.items())))


def starts_again(own: int, entries: Sequence[Entry], win_rate: np.ndarray, random: np.random.Generator) -> bool:
    """Returns whether the player of a newest policy starts from nothing in the next round; `random` is consumed."""
    chance = random.random()
    entry = entries[own]
    if entry.role == "league_exploiter":
        return chance < _RESET
    if entry.role != "main_exploiter":
        return False
    newest = _are(entries, "main_agent") & _newest(entries)
    return entry.age >= _LONGEST or float(win_rate[own][newest].min()) > _EXPLOITED


def _are(entries: Sequence[Entry], role: Role) -> np.ndarray:
    return np.array([entry.role == role for entry in entries], bool)


def _newest(entries: Sequence[Entry]) -> np.ndarray:
    """Returns which policies [P] are the newest of their players."""
    last = {entry.player: number for number, entry in enumerate(entries)}
    return np.array([last[entry.player] == number for number, entry in enumerate(entries)], bool)


def _weights(chosen: np.ndarray, priority: np.ndarray) -> dict[int, float]:
    """Returns the probabilities of the chosen policies, in proportion to their priorities; equal if all are 0."""
    if not chosen.any():
        return {}
    weight = np.where(chosen, priority, 0.0)
    weight = weight / weight.sum() if weight.sum() > 0.0 else chosen / chosen.sum()
    weight = np.where(weight < _LEAST_WEIGHT * weight.max(), 0.0, weight)
    return {int(number): float(weight[number] / weight.sum()) for number in np.flatnonzero(weight)}
