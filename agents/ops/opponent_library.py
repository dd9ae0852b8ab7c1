"""A library of past parameters, how often the learner beat each, and draws of opponents from it.

Members are numbered in the order in which they entered. Member n is at index n modulo M, so member n + M replaces it.

Sources: fictitious self-play is uniform over the past (Heinrich et al. 2015). Prioritized fictitious self-play weighs a member by
f(x), where x is the probability that the learner beats it (Vinyals et al. 2019, AlphaStar, methods).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from agents.api import Array, Params

Opponents = Literal["uniform", "newest", "hard", "variance", "mixture"]
_PRIOR_GAMES = 4.0  # half of them won


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Library:
    """Past parameters, at most M of them.

    Attributes:
        params: [M, ...] each leaf.
        member: [M] int32, number of the member at each index; -1 for none.
        count: int32 scalar, members that have entered.
        wins: [M] float32, games that the learner won against the member; a draw counts 1/2.
        games: [M] float32, games against it.
    """

    params: Params
    member: Array
    count: Array
    wins: Array
    games: Array


def init_library(params: Params, size: int) -> Library:
    """Returns a library of `size` places whose member 0 are these parameters."""
    blank = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), params)
    zeros = jnp.zeros(size, jnp.float32)
    empty = Library(blank, jnp.full(size, -1, jnp.int32), jnp.zeros((), jnp.int32), zeros, jnp.zeros_like(zeros))
    return add_member(empty, params)


def add_member(library: Library, params: Params) -> Library:
    """Returns the library with one more member, which replaces the oldest of a full one."""
    index = library.count % library.member.shape[0]
    return Library(
        jax.tree.map(lambda all_, new: all_.at[index].set(new), library.params, params),
        library.member.at[index].set(library.count),
        library.count + 1,
        library.wins.at[index].set(0.0),
        library.games.at[index].set(0.0),
    )


def holds(library: Library, member: Array) -> Array:
    """Returns whether members, int32 of any shape, are in the library."""
    return (member >= 0) & (library.member[member % library.member.shape[0]] == member)


def take_members(library: Library, member: Array) -> Params:
    """Returns the parameters [K, ...] of members [K], which the library holds."""
    index = member % library.member.shape[0]
    return jax.tree.map(lambda leaf: leaf[index], library.params)


def count_games(library: Library, member: Array, result: Array, counts: Array) -> Library:
    """Returns the library after games.

    Args:
        library: Members before.
        member: Opponent of each game, int32 of any shape. Games against members that have left the library do not count.
        result: 1 for a game that the learner won, 1/2 for a draw, 0 for a loss; float32, of that shape.
        counts: Whether each is a game; bool, of that shape.
    """
    weight = (counts & holds(library, member)).astype(jnp.float32)
    index = member % library.member.shape[0]
    wins, games = library.wins.at[index].add(weight * result), library.games.at[index].add(weight)
    return dataclasses.replace(library, wins=wins, games=games)


def win_rates(library: Library) -> Array:
    """Returns x [M] float32, the learner's estimated probability to win, with a prior of 1/2 that weighs 4 games."""
    return (library.wins + 0.5 * _PRIOR_GAMES) / (library.games + _PRIOR_GAMES)


def probabilities(library: Library, opponents: Opponents, exponent: float, mixture: Sequence[float]) -> Array:
    """Returns the probability [M] float32 with which each index is drawn.

    Args:
        library: Members.
        opponents: "uniform"; "newest"; "hard", in proportion to (1 - x)^exponent; "variance", to x (1 - x); or "mixture".
        exponent: p of "hard".
        mixture: Weights of members 0, 1, ... of "mixture"; others have weight 0. If no member has weight, all are equal.
    """
    present, rate = library.member >= 0, win_rates(library)
    match opponents:
        case "uniform":
            weight = jnp.ones_like(rate)
        case "newest":
            weight = (library.member == library.count - 1).astype(rate.dtype)
        case "hard":
            weight = (1.0 - rate) ** exponent
        case "variance":
            weight = rate * (1.0 - rate)
        case "mixture":
            given: Any = jnp.asarray(mixture, rate.dtype)
            known = library.member < len(mixture)
            weight = jnp.where(known, given[jnp.clip(library.member, 0, len(mixture) - 1)], 0.0)
    weight = jnp.where(present, weight, 0.0)
    total = jnp.sum(weight)
    return jnp.where(total > 0.0, weight / jnp.where(total > 0.0, total, 1.0), present / jnp.sum(present))


def draw_members(library: Library, probability: Array, num_slots: int, key: Array) -> Array:
    """Returns the members [num_slots] int32 that independent draws choose; `key` is consumed."""
    return library.member[jax.random.categorical(key, jnp.log(probability), shape=(num_slots,))]
