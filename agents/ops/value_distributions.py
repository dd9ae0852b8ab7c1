"""Representations of action values by the K outputs of a Q-network: a scalar, a categorical distribution (C51), or quantiles.

`mean` turns the K outputs of an action into one number, by which actions are chosen. `loss` fits the outputs of the chosen action
to the n-step return, `reward + discount * (value of the bootstrap observation)`.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Metrics
from agents.ops.returns import weighted_mean

ValueType = Literal["scalar", "c51", "quantile"]


class ValueDistribution(NamedTuple):
    """Pure functions of outputs.

    Attributes:
        num_outputs: K.
        mean: Maps outputs [..., K] to action values [...]: expected returns, or an increasing function of them.
        backup: Maps (reward [...], discount [...], bootstrap value [...]) to targets [...] of `mean`.
        loss: Maps (outputs [..., K] of the chosen action, outputs [..., K] at the bootstrap observation, reward [...], discount
            [...]) to the loss [...] and the priority [...]. The second outputs have no gradient. The reward is the sum of up to n
            rewards, the discount the factor of the bootstrap value, 0 after a terminal step. The priority is not negative and has
            no gradient.
        clamped: Maps (outputs [..., K] at the bootstrap observation, reward [...], discount [...]) to the probability [...] of
            returns beyond the outputs' range, which the loss clamps. None: the range has no end.
    """

    num_outputs: int
    mean: Callable[[Array], Array]
    backup: Callable[[Array, Array, Array], Array]
    loss: Callable[[Array, Array, Array, Array], tuple[Array, Array]]
    clamped: Callable[[Array, Array, Array], Array] | None = None


def make_value_distribution(config: Any) -> ValueDistribution:
    """Returns the functions of the representation that a configuration names, with its fields (see `agents.dqn.DQNConfig`)."""
    if config.value_type == "c51":
        return categorical_value(config.num_atoms, config.v_min, config.v_max)
    if config.value_type == "quantile":
        return quantile_value(config.num_atoms, config.huber_delta)
    return scalar_value(config.huber_delta, config.value_rescale_epsilon)


def clamped_fraction(
    values: ValueDistribution, bootstrap: Array, reward: Array, discount: Array, weight: Array
) -> Metrics:
    """Returns the metric of clamped returns, a weighted mean, where the range of values has an end; otherwise none."""
    if values.clamped is None:
        return {}
    return {"value/clamped_fraction": weighted_mean(values.clamped(bootstrap, reward, discount), weight)}


def scalar_value(huber_delta: float | None = 1.0, rescale_epsilon: float | None = None) -> ValueDistribution:
    """Returns the functions of a scalar, the expected return. The priority is the absolute temporal difference.

    Args:
        huber_delta: Errors beyond it count linearly (Mnih et al. 2015 clip the error's derivative to 1). None: squared errors.
        rescale_epsilon: epsilon of `rescale`, where outputs are rescaled returns (Pohlen et al. 2018; 1e-3 in R2D2). None: outputs
            are returns.
    """

    def mean(outputs: Array) -> Array:
        return outputs[..., 0]

    def backup(reward: Array, discount: Array, bootstrap: Array) -> Array:
        if rescale_epsilon is None:
            return reward + discount * bootstrap
        return rescale(reward + discount * unrescale(bootstrap, rescale_epsilon), rescale_epsilon)

    def loss(outputs: Array, bootstrap: Array, reward: Array, discount: Array) -> tuple[Array, Array]:
        target = jax.lax.stop_gradient(backup(reward, discount, mean(bootstrap)))
        error = target - mean(outputs)
        return huber(error, huber_delta), jnp.abs(jax.lax.stop_gradient(error))

    return ValueDistribution(1, mean, backup, loss)


def categorical_value(num_atoms: int, v_min: float, v_max: float) -> ValueDistribution:
    """Returns the functions of C51: probabilities (softmax of K outputs) of K returns evenly spaced from `v_min` to `v_max`.

    The loss is the cross-entropy. The priority is the divergence KL(target || prediction), as in Rainbow (Hessel et al. 2018).

    Source: Bellemare et al. 2017 (arXiv:1707.06887), algorithm 1.
    """
    support = jnp.linspace(v_min, v_max, num_atoms)

    def mean(outputs: Array) -> Array:
        return jnp.sum(jax.nn.softmax(outputs) * support, axis=-1)

    def loss(outputs: Array, bootstrap: Array, reward: Array, discount: Array) -> tuple[Array, Array]:
        returns = reward[..., None] + discount[..., None] * support
        target = jax.lax.stop_gradient(project(returns, jax.nn.softmax(bootstrap), v_min, v_max))
        cross_entropy = -jnp.sum(target * jax.nn.log_softmax(outputs), axis=-1)
        negative_entropy = jnp.sum(jnp.where(target > 0, target * jnp.log(jnp.where(target > 0, target, 1.0)), 0.0), -1)
        # Rounding may make a divergence of 0 negative.
        return cross_entropy, jnp.maximum(jax.lax.stop_gradient(cross_entropy + negative_entropy), 0.0)

    def clamped(bootstrap: Array, reward: Array, discount: Array) -> Array:
        returns = reward[..., None] + discount[..., None] * support
        return jnp.sum(jax.nn.softmax(bootstrap) * ((returns < v_min) | (returns > v_max)), axis=-1)

    return ValueDistribution(num_atoms, mean, _plain_backup, loss, clamped)


def quantile_value(num_quantiles: int, kappa: float = 1.0) -> ValueDistribution:
    """Returns the functions of QR-DQN: K quantiles of the return, at the midpoints of K equal probabilities.

    The priority is the absolute difference of means.

    Source: Dabney et al. 2018 (arXiv:1710.10044), algorithm 1.
    """
    midpoints = (jnp.arange(num_quantiles) + 0.5) / num_quantiles

    def mean(outputs: Array) -> Array:
        return jnp.mean(outputs, axis=-1)

    def loss(outputs: Array, bootstrap: Array, reward: Array, discount: Array) -> tuple[Array, Array]:
        target = jax.lax.stop_gradient(reward[..., None] + discount[..., None] * bootstrap)
        error = jax.lax.stop_gradient(mean(target) - mean(outputs))
        return quantile_huber(outputs, target, midpoints, kappa), jnp.abs(error)

    return ValueDistribution(num_quantiles, mean, _plain_backup, loss)


def _plain_backup(reward: Array, discount: Array, bootstrap: Array) -> Array:
    return reward + discount * bootstrap


def project(values: Array, probabilities: Array, v_min: float, v_max: float) -> Array:
    """Returns a distribution over arbitrary values projected onto K fixed atoms.

    Each value's probability is divided between its two nearest atoms, in proportion to nearness.

    Examples:
        >>> project(jnp.array([0.25, 9.0, 9.0]), jnp.array([0.5, 0.25, 0.25]), v_min=0.0, v_max=2.0).tolist()
        [0.375, 0.125, 0.5]

    Args:
        values: [..., K]; values beyond the ends count as the ends.
        probabilities: [..., K] of the values.
        v_min: First atom.
        v_max: Last atom.

    Returns:
        [..., K] probabilities of K atoms evenly spaced from `v_min` to `v_max`.

    Source: Bellemare et al. 2017, eq. 7.
    """
    num_atoms = values.shape[-1]
    # Positions in units of the distance between two atoms: [..., K, 1] against [K].
    position = (jnp.clip(values, v_min, v_max) - v_min) * ((num_atoms - 1) / (v_max - v_min))
    share = jnp.clip(1.0 - jnp.abs(position[..., None] - jnp.arange(num_atoms)), 0.0, 1.0)
    return jnp.sum(share * probabilities[..., None], axis=-2)


def quantile_huber(quantiles: Array, target: Array, midpoints: Array, kappa: float) -> Array:
    """Returns the quantile Huber loss [...].

    It is the sum over quantiles of the mean over targets of |midpoint - 1{u < 0}| huber_kappa(u) / kappa, u = target - quantile.

    Args:
        quantiles: [..., K] predictions.
        target: [..., M] samples of the return.
        midpoints: [K] probability of a return below each quantile.
        kappa: Error beyond which the Huber loss is linear, in reward units.

    Source: Dabney et al. 2018, eq. 10.
    """
    error = target[..., None, :] - quantiles[..., :, None]
    weight = jnp.abs(midpoints[:, None] - (error < 0).astype(jnp.float32))
    return jnp.sum(jnp.mean(weight * huber(error, kappa) / kappa, axis=-1), axis=-1)


def huber(error: Array, delta: float | None) -> Array:
    """Returns half the square [...], linear beyond `delta` with slope `delta`. None: half the square everywhere.

    Examples:
        >>> huber(jnp.array([-3.0, 0.5]), delta=1.0).tolist(), huber(jnp.array([-3.0, 0.5]), delta=None).tolist()
        ([2.5, 0.125], [4.5, 0.125])
    """
    if delta is None:
        return 0.5 * jnp.square(error)
    size = jnp.abs(error)
    inside = jnp.minimum(size, delta)
    return 0.5 * jnp.square(inside) + delta * (size - inside)


def rescale(x: Array, epsilon: float) -> Array:
    """Returns h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, [...], which compresses returns of any size.

    Examples:
        >>> rescale(jnp.array([-8.0, 0.0, 99.0]), epsilon=0.0).tolist()
        [-2.0, 0.0, 9.0]

    Source: Pohlen et al. 2018 (arXiv:1805.11593), proposition A.2; Kapturowski et al. 2019 (R2D2), section 2.3.
    """
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + epsilon * x


def unrescale(y: Array, epsilon: float) -> Array:
    """Returns the inverse of `rescale`, [...]."""
    # The paper's (sqrt(1 + u) - 1) / (2 epsilon) with u = 4 epsilon (|y| + 1 + epsilon), without its cancellation in float32.
    u = jnp.abs(y) + 1.0 + epsilon
    root = 2.0 * u / (jnp.sqrt(1.0 + 4.0 * epsilon * u) + 1.0)
    return jnp.sign(y) * (jnp.square(root) - 1.0)
