"""Transitions of n steps from windows of replay. Pure functions of arrays."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Action, Array, Observation, Trajectory
from agents.ops.n_step import NStepRewards, take_steps


class Transitions(NamedTuple):
    """N transitions of up to n steps.

    Attributes:
        observation: [N, ...] each leaf.
        action: [N, ...] each leaf.
        reward: [N] float32, discounted sum of the rewards in between.
        discount: [N] float32, factor of the bootstrap value: g^k after k steps, 0 after a terminal step.
        next_observation: [N, ...] each leaf, the observation to bootstrap from.
        weight: [N] float32, 0 for a window whose first step only resets, otherwise 1.
    """

    observation: Observation
    action: Action
    reward: Array
    discount: Array
    next_observation: Observation
    weight: Array


def first_transitions(window: Trajectory, rewards: NStepRewards) -> Transitions:
    """Returns the transition from the first step of each window.

    Args:
        window: Windows of L steps of N rows.
        rewards: Sums of rewards from every step of the windows.
    """
    observation, action = jax.tree.map(lambda leaf: leaf[0], (window.observation, window.action))
    return Transitions(
        observation=observation,
        action=action,
        reward=rewards.reward[0],
        discount=rewards.discount[0],
        next_observation=take_steps(window.observation, rewards.position[0]),
        weight=window.valid[0].astype(jnp.float32),
    )
