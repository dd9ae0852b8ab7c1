"""From windows of replay to the transitions that DDPG, TD3 and SAC learn from."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Sample
from agents.ops.action_scaling import ContinuousActions
from agents.ops.continuous_config import ContinuousConfig
from agents.ops.importance_weights import importance_exponent, importance_weights
from agents.ops.n_step import at_positions, n_step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """N transitions of up to n steps.

    Attributes:
        observation: [N, ...] each leaf.
        action: [N, D] float32 in [-1, 1].
        reward: [N] float32, the discounted sum of the rewards in between.
        discount: [N] float32, of what follows: g^k after k steps, 0 after a terminal one.
        next_observation: [N, ...] each leaf, what is bootstrapped from.
        weight: [N] float32, 0 where the step only reset.
        importance: [N] float32 in (0, 1], 1 without priorities.
    """

    observation: Observation
    action: Array
    reward: Array
    discount: Array
    next_observation: Observation
    weight: Array
    importance: Array


MakeBatch = Callable[[Sample, Array], Batch]


def batch_maker(config: ContinuousConfig, actions: ContinuousActions) -> MakeBatch:
    """The function (sample of windows of n steps, num_updates) to the transitions from their first steps.

    Raises:
        UserError: priorities, without the number of updates over which their correction grows.
    """
    prioritised = config.replay.priority_exponent > 0.0
    exponent = importance_exponent(config.importance_exponent, config.total_updates) if prioritised else None

    def make(sample: Sample, num_updates: Array) -> Batch:
        window = sample.trajectory
        steps = n_step(
            window.reward,
            window.terminated,
            window.truncated,
            window.valid,
            discount=config.discount,
            num_steps=config.n_step,
        )
        importance = jnp.ones_like(sample.probability)
        if exponent is not None:
            importance = importance_weights(sample.probability, sample.num_windows, exponent(num_updates))
        return Batch(
            observation=jax.tree.map(lambda leaf: leaf[0], window.observation),
            action=actions.to_unit(jax.tree.map(lambda leaf: leaf[0], window.action)),
            reward=steps.reward[0],
            discount=steps.discount[0],
            next_observation=at_positions(window.observation, steps.position[0]),
            weight=window.valid[0].astype(jnp.float32),
            importance=importance,
        )

    return make
