"""Sums of n rewards within a window, the observations from which their returns bootstrap, and transitions of n steps.

Arrays are time-major, under Gymnasium's NEXT_STEP episode boundaries. After a step that ended an episode, `observation[t + 1]` is
the terminal observation, and the next step only resets. The caller computes the values, often of few observations only.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Action, Array, Observation, Trajectory
from envpool_bridge.errors import UserError


class NStepRewards(NamedTuple):
    """Parts of n-step returns: `reward[t] + discount[t] * value(observation[position[t]])` from step t.

    Attributes:
        reward: [L, B] float32, the discounted sum of up to n rewards.
        discount: [L, B] float32, factor of the bootstrap value: g^k after k steps, 0 after a terminal step.
        position: [L, B] int32 in [1, L], index of the observation to bootstrap from; t itself for a step that only reset.
    """

    reward: Array
    discount: Array
    position: Array


def n_step_rewards(
    reward: Array, terminated: Array, truncated: Array, valid: Array, *, discount: float, n_step: int
) -> NStepRewards:
    """Returns the discounted sums of up to n rewards from each step of a window.

    A sum ends early where its episode does (truncation bootstraps from the terminal observation) and at the end of the window.

    Examples:
        >>> no, last = jnp.zeros([3, 1], bool), jnp.array([[False], [False], [True]])
        >>> sums = n_step_rewards(jnp.ones([3, 1]), terminated=last, truncated=no, valid=~no, discount=0.5, n_step=2)
        >>> sums.reward[:, 0].tolist(), sums.discount[:, 0].tolist(), sums.position[:, 0].tolist()
        ([1.5, 1.5, 1.0], [0.25, 0.0, 0.0], [2, 3, 3])

    Args:
        reward: [L, B] float32.
        terminated: [L, B] bool.
        truncated: [L, B] bool.
        valid: [L, B] bool. A step that only reset gets reward 0 and discount 0.
        discount: g in [0, 1].
        n_step: n >= 1.

    Raises:
        UserError: `n_step` is less than 1.

    Source: Sutton and Barto 2018, eq. 7.1.
    """
    if n_step < 1:
        raise UserError(f"n_step must be at least 1: got {n_step}")
    # The last step of the window has nothing after it, as if it were cut.
    after = jnp.broadcast_to(jnp.arange(1, reward.shape[0] + 1, dtype=jnp.int32)[:, None], reward.shape)
    # A step that does not count starts an episode, perhaps without an end before it (a failure cut it).
    cut_next = jnp.concatenate([~valid[1:], jnp.ones_like(valid[:1])])
    stops = terminated | truncated | cut_next
    single_step = NStepRewards(reward, discount * (~terminated).astype(jnp.float32), after)
    longer = single_step
    for _ in range(n_step - 1):
        # One more reward in front of the sums of one step fewer.
        rest = NStepRewards(*(jnp.concatenate([part[1:], part[-1:]]) for part in longer))
        longer = NStepRewards(
            reward=jnp.where(stops, single_step.reward, reward + discount * rest.reward),
            discount=jnp.where(stops, single_step.discount, discount * rest.discount),
            position=jnp.where(stops, single_step.position, rest.position),
        )
    counted = valid.astype(jnp.float32)
    # Not a product: a step that only reset may carry any number.
    return NStepRewards(
        jnp.where(valid, longer.reward, 0.0), longer.discount * counted, jnp.where(valid, longer.position, after - 1)
    )


def take_steps(tree: Any, position: Array) -> Any:
    """Returns the leaves [L+1, B, ...] at `position` [K, B] or [B] (int32, of each row): [K, B, ...] or [B, ...]."""
    is_single = position.ndim == 1
    index = position[None] if is_single else position

    def take(x: Array) -> Array:
        steps = jnp.take_along_axis(x, index.reshape(index.shape + (1,) * (x.ndim - 2)), axis=0)
        return steps[0] if is_single else steps

    return jax.tree.map(take, tree)


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


def first_n_step_transitions(window: Trajectory, discount: float, n_step: int) -> Transitions:
    """Returns the n-step transition from the first step of each window; arguments as in `n_step_rewards`."""
    ends = (window.terminated, window.truncated, window.valid)
    return first_transitions(window, n_step_rewards(window.reward, *ends, discount=discount, n_step=n_step))
