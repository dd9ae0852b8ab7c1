"""Episode returns and lengths, summed on the device while rows are stepped; the host fetches the sums when it wants them."""

import dataclasses

import jax
import jax.numpy as jnp

from agents.api import Array
from jaxsrl.envs.autoreset import StepOutput


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpisodeSums:
    """The episode each of B rows is in, and the episodes each finished since the sums were last clear_finished; [B] each.

    Nothing is added up over rows: rows may be on several devices, which then need not talk to each other.

    Attributes:
        running_return: float32, of the unfinished episode, in environment reward units.
        running_length: int32, of the unfinished episode, in env steps.
        count: int32, finished episodes.
        return_sum: float32, of the finished ones.
        return_max: float32, of the finished ones; -inf without any.
        length_sum: int32, of the finished ones.
    """

    running_return: Array
    running_length: Array
    count: Array
    return_sum: Array
    return_max: Array
    length_sum: Array


def init_episode_sums(num_rows: int) -> EpisodeSums:
    """Sums of rows that have not been stepped yet."""
    # An array each: the program that steps the rows is given their memory, which no two of them may share.
    return clear_finished(
        EpisodeSums(
            running_return=jnp.zeros(num_rows, jnp.float32),
            running_length=jnp.zeros(num_rows, jnp.int32),
            count=jnp.zeros(num_rows, jnp.int32),
            return_sum=jnp.zeros(num_rows, jnp.float32),
            return_max=jnp.zeros(num_rows, jnp.float32),
            length_sum=jnp.zeros(num_rows, jnp.int32),
        )
    )


def add_step(sums: EpisodeSums, step: StepOutput) -> EpisodeSums:
    """The sums after one step of every row."""
    episode_return = sums.running_return + step.reward
    episode_length = sums.running_length + step.valid
    ended = step.terminated | step.truncated
    return EpisodeSums(
        running_return=jnp.where(ended, 0.0, episode_return),
        running_length=jnp.where(ended, 0, episode_length),
        count=sums.count + ended,
        return_sum=sums.return_sum + jnp.where(ended, episode_return, 0.0),
        return_max=jnp.where(ended, jnp.maximum(sums.return_max, episode_return), sums.return_max),
        length_sum=sums.length_sum + jnp.where(ended, episode_length, 0),
    )


def clear_finished(sums: EpisodeSums) -> EpisodeSums:
    """The same unfinished episodes, and no finished one."""
    return dataclasses.replace(
        sums,
        count=jnp.zeros_like(sums.count),
        return_sum=jnp.zeros_like(sums.return_sum),
        return_max=jnp.full_like(sums.return_max, -jnp.inf),
        length_sum=jnp.zeros_like(sums.length_sum),
    )
