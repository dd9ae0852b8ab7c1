"""COMA's mathematics: counterfactual advantages, and targets of the values they come from."""

import jax
import jax.numpy as jnp

from agents.api import Array
from agents.ops.epsilon_greedy import select_action


def counterfactual_advantage(action_values: Array, logits: Array, action: Array) -> Array:
    """Returns the value of an action minus the mean over the agent's own policy, with the others' actions fixed.

    A_i = Q(s, u) - sum_a pi_i(a) Q(s, (u_-i, a)); its mean over pi_i is 0.

    Args:
        action_values: [..., A] float32, Q(s, (u_-i, .)).
        logits: [..., A] float32, of pi_i.
        action: [...] int32, u_i.

    Returns:
        [...] float32, reward units.

    Source: Foerster et al. 2018, eq. 4.
    """
    baseline = jnp.sum(jax.nn.softmax(logits) * action_values, axis=-1)
    return select_action(action_values, action) - baseline


def lambda_targets(
    reward: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    *,
    discount: float,
    lambda_: float,
) -> Array:
    """Returns TD(lambda) targets of values of chosen actions.

    G_t = r_t + g (1 - terminated_t) ((1 - lambda) Q_{t+1} + lambda G_{t+1}), with Q_{t+1} in place of G_{t+1} where the episode is
    cut and at the end of the trajectory.

    Args:
        reward: [T, B] float32.
        next_value: [T, B] float32, Q after step t: of the terminal observation where the episode is cut.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool.
        discount: g in [0, 1].
        lambda_: Lambda in [0, 1].

    Returns:
        [T, B] float32, 0 where not valid.

    Source: Foerster et al. 2018, section 3; Sutton and Barto 2018, eq. 12.18.
    """

    def step(target: Array, inputs: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        reward_t, value, stops, cut = inputs
        ahead = jnp.where(cut, value, (1.0 - lambda_) * value + lambda_ * target)
        target = reward_t + discount * jnp.where(stops, 0.0, ahead)
        return target, target

    _, targets = jax.lax.scan(step, next_value[-1], (reward, next_value, terminated, truncated), reverse=True)
    return jnp.where(valid, targets, 0.0)
