"""Scores of levels, and the probability with which each level is played next: prioritized level replay.

A level is an integer that fixes how an episode starts. Its score is the mean absolute advantage over the steps of its newest
episode that count. An episode counts when it ends with such a step.

Source: Jiang et al. 2021 (arXiv:2010.03934), sections 3.1 and 3.2: the value loss in L1 by generalized advantages, priorities
h = 1 / rank, and staleness.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LevelScores:
    """Results of N levels.

    Attributes:
        score: [N] float32, of the newest episode.
        newest: [N] int32, number of the newest episode, counted from 1; 0 for a level without one.
        episodes: int32 scalar, episodes of all levels.
    """

    score: Array
    newest: Array
    episodes: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OpenEpisodes:
    """Episodes of B rows between two trajectories; [B] each.

    Attributes:
        total: float32, absolute advantages so far.
        length: int32, steps so far; -1 for an episode of which steps are missing.
        step: int32, steps of the row before the next trajectory.
    """

    total: Array
    length: Array
    step: Array


class EpisodeSteps(NamedTuple):
    """Steps of R rows; [T, R] each.

    Attributes:
        advantage: float32.
        is_first: bool, an episode starts with the step.
        counted: bool, False where the environment only reset, or the agent does not learn from the step.
        ended: bool, the episode ended.
    """

    advantage: Array
    is_first: Array
    counted: Array
    ended: Array


def init_scores(num_levels: int) -> LevelScores:
    """Returns levels before their first episodes."""
    zeros = jnp.zeros(num_levels, jnp.int32)
    return LevelScores(jnp.zeros(num_levels, jnp.float32), zeros, jnp.zeros((), jnp.int32))


def init_episodes(num_rows: int) -> OpenEpisodes:
    """Returns episodes before their first step."""
    zeros = jnp.zeros(num_rows, jnp.int32)
    return OpenEpisodes(jnp.zeros(num_rows, jnp.float32), zeros, jnp.zeros_like(zeros))


def probabilities(scores: LevelScores, temperature: float, staleness: float, replay_share: float | None) -> Array:
    """Returns the probability [N] float32 of each level to be played next.

    With probability p, a level with an episode: (1 - staleness) P_score + staleness P_age, where P_score is in proportion to
    rank^(-1 / temperature), rank 1 has the highest score, and P_age is in proportion to the episodes since its own. Otherwise,
    or before any episode, each of the other levels is as likely.

    Args:
        scores: Results so far.
        temperature: beta; inf makes all ranks equal.
        staleness: rho, in [0, 1].
        replay_share: p while there are levels without an episode; None for the share of levels with one.
    """
    seen, num_levels = scores.newest > 0, scores.score.shape[0]
    order = jnp.argsort(jnp.where(seen, -scores.score, jnp.inf), stable=True)
    rank = jnp.zeros(num_levels, jnp.float32).at[order].set(jnp.arange(1.0, num_levels + 1.0))
    by_score = _normalized(jnp.where(seen, rank ** (-1.0 / temperature), 0.0))
    age = jnp.where(seen, scores.episodes - scores.newest, 0).astype(jnp.float32)
    by_age = jnp.where(jnp.sum(age) > 0.0, _normalized(age), by_score)
    replay = (1.0 - staleness) * by_score + staleness * by_age
    seen_share = jnp.mean(seen.astype(jnp.float32))
    share = seen_share if replay_share is None else jnp.where(seen_share > 0.0, replay_share, 0.0)
    share = jnp.where(jnp.all(seen), 1.0, share)
    return share * replay + (1.0 - share) * _normalized((~seen).astype(jnp.float32))


def _normalized(weight: Array) -> Array:
    total = jnp.sum(weight)
    return weight / jnp.where(total > 0.0, total, 1.0)


def draw_levels(probability: Array, keys: Array) -> Array:
    """Returns a level for each of the keys [B], int32; each depends on its own key alone, which is consumed."""
    cumulative = jnp.cumsum(probability)
    uniform = jax.vmap(jax.random.uniform)(keys) * cumulative[-1]
    drawn = jnp.searchsorted(cumulative, uniform, side="right")
    # Rounding may reach the end of the sum, behind which there is no level.
    last = probability.shape[0] - 1 - jnp.argmax(probability[::-1] > 0.0)
    return jnp.minimum(drawn, last).astype(jnp.int32)


def score_episodes(
    episodes: OpenEpisodes, row: Array, first_step: Array, steps: EpisodeSteps
) -> tuple[OpenEpisodes, Array, Array]:
    """Returns the episodes after a trajectory, and scores [T, R] with a mask of the steps that have one: ends of episodes.

    Args:
        episodes: Episodes of all B rows.
        row: [R] int32, index of each row of the trajectory.
        first_step: [R] int32, steps of the row before the trajectory. If some are missing, its episode has no score.
        steps: Steps of the trajectory.
    """
    missed = episodes.step[row] != first_step
    carry = jnp.where(missed, 0.0, episodes.total[row]), jnp.where(missed, -1, episodes.length[row])
    (total, length), (score, scored) = jax.lax.scan(_step, carry, steps)
    after = OpenEpisodes(
        episodes.total.at[row].set(total),
        episodes.length.at[row].set(length),
        episodes.step.at[row].set(first_step + steps.counted.shape[0]),
    )
    return after, score, scored


def _step(carry: tuple[Array, Array], now: EpisodeSteps) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    total, length = jnp.where(now.is_first, 0.0, carry[0]), jnp.where(now.is_first, 0, carry[1])
    counted = now.counted & (length >= 0)
    total = total + jnp.where(counted, jnp.abs(now.advantage), 0.0)
    length = length + counted
    ended = counted & now.ended
    return (total, length), (jnp.where(ended, total / jnp.maximum(length, 1), 0.0), ended)


def add_episodes(scores: LevelScores, level: Array, score: Array, scored: Array) -> LevelScores:
    """Returns the levels' results after episodes, of which those of the last steps and rows are the newest.

    Args:
        scores: Results before.
        level: [T, R] int32.
        score: [T, R] float32, of the episode that ended at the step.
        scored: [T, R] bool, whether one ended.
    """
    level, score, scored = level.reshape(-1), score.reshape(-1), scored.reshape(-1)
    place = jnp.where(scored, jnp.arange(scored.shape[0], dtype=jnp.int32), -1)
    # The maximum of integers, unlike a sum of floats, is the same in any order.
    last = jnp.full(scores.newest.shape, -1, jnp.int32).at[level].max(place)
    number = scores.episodes + jnp.cumsum(scored.astype(jnp.int32))
    return LevelScores(
        jnp.where(last >= 0, score[last], scores.score),
        jnp.where(last >= 0, number[last], scores.newest),
        number[-1],
    )
