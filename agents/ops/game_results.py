"""Results of games between two teams, from trajectories of any length.

A game is an episode of an environment. The learner wins if the sum of its scores is positive, and draws if it is 0 but for
rounding. A game counts if it was played against one opponent from its first step to its last, and if no step of it is missing.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array

_NO_OPPONENT = -2  # of a game that does not count
_ROUNDING = 1e-6  # sums of float32 numbers that cancel leave about this share of their absolute values


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OpenGames:
    """Games of E environments between two trajectories; [E] each.

    Attributes:
        score: float32, sum of the scores so far.
        magnitude: float32, sum of their absolute values.
        opponent: int32, opponent since the first step; -2 for a game that does not count.
        is_new: bool, the next step is the first of a game.
        step: int32, steps of the environment before the next trajectory.
    """

    score: Array
    magnitude: Array
    opponent: Array
    is_new: Array
    step: Array


class Steps(NamedTuple):
    """Steps of R environments; [T, R] each.

    Attributes:
        score: float32, rewards of the learner's team less those of its opponent, in proportion to their means.
        magnitude: float32, sum of the absolute values of these rewards.
        opponent: int32.
        valid: bool, False where the environment only reset.
        ended: bool, the game ended.
    """

    score: Array
    magnitude: Array
    opponent: Array
    valid: Array
    ended: Array


class Results(NamedTuple):
    """Games that ended; [T, R] each.

    Attributes:
        opponent: int32.
        result: float32, 1 for a win of the learner, 1/2 for a draw, 0 for a loss.
        counts: bool, whether a game that counts ended at the step.
    """

    opponent: Array
    result: Array
    counts: Array


def init_games(num_envs: int) -> OpenGames:
    """Returns games before their first step."""
    # Each field has an array of its own: the state is donated, and no buffer may occur in it twice.
    score, magnitude = jnp.zeros(num_envs, jnp.float32), jnp.zeros(num_envs, jnp.float32)
    opponent, step = jnp.zeros(num_envs, jnp.int32), jnp.zeros(num_envs, jnp.int32)
    return OpenGames(score, magnitude, opponent, jnp.ones(num_envs, bool), step)


def play_on(games: OpenGames, env: Array, first_step: Array, steps: Steps) -> tuple[OpenGames, Results]:
    """Returns the games after a trajectory, and the results of those that ended.

    Args:
        games: Games of all E environments.
        env: [R] int32, index of each environment of the trajectory.
        first_step: [R] int32, steps of the environment before the trajectory. If some are missing, its game does not count.
        steps: Steps of the trajectory.
    """
    missed = games.step[env] != first_step
    carry = (
        games.score[env],
        games.magnitude[env],
        jnp.where(missed, _NO_OPPONENT, games.opponent[env]),
        jnp.where(missed, False, games.is_new[env]),
    )
    (score, magnitude, opponent, is_new), results = jax.lax.scan(_step, carry, steps)
    after = OpenGames(
        games.score.at[env].set(score),
        games.magnitude.at[env].set(magnitude),
        games.opponent.at[env].set(opponent),
        games.is_new.at[env].set(is_new),
        games.step.at[env].set(first_step + steps.score.shape[0]),
    )
    return after, results


def _step(carry: tuple[Array, Array, Array, Array], now: Steps) -> tuple[tuple[Array, Array, Array, Array], Results]:
    score, magnitude, opponent, is_new = carry
    score = jnp.where(is_new, 0.0, score) + jnp.where(now.valid, now.score, 0.0)
    magnitude = jnp.where(is_new, 0.0, magnitude) + jnp.where(now.valid, now.magnitude, 0.0)
    same = jnp.where(opponent == now.opponent, opponent, _NO_OPPONENT)
    opponent = jnp.where(now.valid, jnp.where(is_new, now.opponent, same), opponent)
    ended = now.valid & now.ended
    result = 0.5 * (jnp.where(jnp.abs(score) > _ROUNDING * magnitude, jnp.sign(score), 0.0) + 1.0)
    counts = ended & (opponent >= 0)
    # A reset starts a game, also where a failure cut the one before without an end.
    return (score, magnitude, opponent, ended | ~now.valid), Results(opponent, result, counts)
