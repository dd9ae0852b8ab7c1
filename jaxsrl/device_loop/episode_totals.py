"""Episode returns and lengths, summed on the device during steps; the host fetches the sums on demand."""

import dataclasses

import jax
import jax.numpy as jnp

from agents.api import Array
from jaxsrl.envs.autoreset import StepOutput


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpisodeSums:
    """Current episode of B rows, and the episodes each row finished since the last reset of the sums; [B] each.

    Nothing is summed over rows, because rows may be on several devices, which then need no communication.

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
    """Returns sums of rows before their first step."""
    # One array each: the program that steps the rows gets their memory by donation, so they must not alias.
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
    """Returns the sums after one step of every row."""
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
    """Returns the same unfinished episodes without finished ones."""
    return dataclasses.replace(
        sums,
        count=jnp.zeros_like(sums.count),
        return_sum=jnp.zeros_like(sums.return_sum),
        return_max=jnp.full_like(sums.return_max, -jnp.inf),
        length_sum=jnp.zeros_like(sums.length_sum),
    )
