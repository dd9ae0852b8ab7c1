"""What a Q-network's outputs for an action say of its return, and how they are fitted: a number, or a distribution.

An action value is `num_outputs` numbers K. `mean` makes one number of them, by which actions are chosen; `loss` fits those of the
action taken to the return of up to n steps, `reward + discount * (what follows)`.
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from agents.api import Array


class MeanFn(Protocol):
    """Action values [...] of outputs [..., K]: expected returns, or a growing function of them."""

    def __call__(self, outputs: Array) -> Array: ...


class BackupFn(Protocol):
    """[...] what `mean` should say, of reward [...], discount [...] and the `mean` [...] of what follows."""

    def __call__(self, reward: Array, discount: Array, following: Array) -> Array: ...


class LossFn(Protocol):
    """Errors of outputs [..., K] of the action taken.

    Args: outputs; following: [..., K], outputs of the action that is followed, without gradient; reward [...]: of up to n steps;
    discount [...]: of what follows, 0 where nothing does.
    Returns: the loss [...], and the priority [...], not negative and without gradient.
    """

    def __call__(self, outputs: Array, following: Array, reward: Array, discount: Array) -> tuple[Array, Array]: ...


class ValueDistribution(NamedTuple):
    """Pure functions of outputs.

    Attributes:
        num_outputs: K.
        mean: of outputs.
        backup: one step of dynamic programming on means.
        loss: of outputs, and its priority.
    """

    num_outputs: int
    mean: MeanFn
    backup: BackupFn
    loss: LossFn


def expected_value(huber_delta: float | None = 1.0, rescaling: float | None = None) -> ValueDistribution:
    """The expected return itself; the priority is the absolute temporal difference.

    Args:
        huber_delta: errors beyond it count linearly (Mnih et al. 2015 clip the error's derivative to 1); None: squares.
        rescaling: epsilon of `rescale`, where outputs are rescaled returns (Pohlen et al. 2018; 1e-3 in R2D2); None: none.
    """

    def mean(outputs: Array) -> Array:
        return outputs[..., 0]

    def backup(reward: Array, discount: Array, following: Array) -> Array:
        if rescaling is None:
            return reward + discount * following
        return rescale(reward + discount * unrescale(following, rescaling), rescaling)

    def loss(outputs: Array, following: Array, reward: Array, discount: Array) -> tuple[Array, Array]:
        target = jax.lax.stop_gradient(backup(reward, discount, mean(following)))
        error = target - mean(outputs)
        return huber(error, huber_delta), jnp.abs(jax.lax.stop_gradient(error))

    return ValueDistribution(1, mean, backup, loss)


def categorical_value(num_atoms: int, low: float, high: float) -> ValueDistribution:
    """Probabilities (softmax of K outputs) of K returns evenly from `low` to `high`: C51.

    The loss is the cross-entropy; the priority the divergence KL(target || prediction), as in Rainbow (Hessel et al. 2018).

    Source: Bellemare et al. 2017 (arXiv:1707.06887), algorithm 1.
    """
    support = jnp.linspace(low, high, num_atoms)

    def mean(outputs: Array) -> Array:
        return jnp.sum(jax.nn.softmax(outputs) * support, axis=-1)

    def loss(outputs: Array, following: Array, reward: Array, discount: Array) -> tuple[Array, Array]:
        returns = reward[..., None] + discount[..., None] * support
        target = jax.lax.stop_gradient(project(returns, jax.nn.softmax(following), low, high))
        cross_entropy = -jnp.sum(target * jax.nn.log_softmax(outputs), axis=-1)
        negative_entropy = jnp.sum(jnp.where(target > 0, target * jnp.log(jnp.where(target > 0, target, 1.0)), 0.0), -1)
        # Rounding may take a divergence of 0 below it.
        return cross_entropy, jnp.maximum(jax.lax.stop_gradient(cross_entropy + negative_entropy), 0.0)

    return ValueDistribution(num_atoms, mean, _plain_backup, loss)


def quantile_value(num_quantiles: int, kappa: float = 1.0) -> ValueDistribution:
    """K quantiles of the return, at the middles of K equal shares: QR-DQN. The priority is the absolute difference of means.

    Source: Dabney et al. 2018 (arXiv:1710.10044), algorithm 1.
    """
    shares = (jnp.arange(num_quantiles) + 0.5) / num_quantiles

    def mean(outputs: Array) -> Array:
        return jnp.mean(outputs, axis=-1)

    def loss(outputs: Array, following: Array, reward: Array, discount: Array) -> tuple[Array, Array]:
        target = jax.lax.stop_gradient(reward[..., None] + discount[..., None] * following)
        error = jax.lax.stop_gradient(mean(target) - mean(outputs))
        return quantile_huber(outputs, target, shares, kappa), jnp.abs(error)

    return ValueDistribution(num_quantiles, mean, _plain_backup, loss)


def _plain_backup(reward: Array, discount: Array, following: Array) -> Array:
    return reward + discount * following


def project(values: Array, probabilities: Array, low: float, high: float) -> Array:
    """A distribution over any values moved to K fixed ones: each value's probability goes to its two neighbours, by nearness.

    Examples:
        >>> project(jnp.array([0.25, 9.0, 9.0]), jnp.array([0.5, 0.25, 0.25]), low=0.0, high=2.0).tolist()
        [0.375, 0.125, 0.5]

    Args:
        values: [..., K] what can be; those beyond the ends count as the ends.
        probabilities: [..., K] of them.
        low: the first fixed value.
        high: the last.

    Returns:
        [..., K] probabilities of K values evenly from `low` to `high`.

    Source: Bellemare et al. 2017, eq. 7.
    """
    num_atoms = values.shape[-1]
    # Places among the fixed values, in units of the distance of two of them: [..., K, 1] against [K].
    place = (jnp.clip(values, low, high) - low) * ((num_atoms - 1) / (high - low))
    share = jnp.clip(1.0 - jnp.abs(place[..., None] - jnp.arange(num_atoms)), 0.0, 1.0)
    return jnp.sum(share * probabilities[..., None], axis=-2)


def quantile_huber(quantiles: Array, target: Array, shares: Array, kappa: float) -> Array:
    """[...] sum over quantiles, mean over targets, of |share - 1{u < 0}| huber_kappa(u) / kappa with u = target - quantile.

    Args:
        quantiles: [..., K] predictions.
        target: [..., M] samples of the return.
        shares: [K] of the return's probability below each quantile.
        kappa: where the Huber loss becomes linear, in reward units.

    Source: Dabney et al. 2018, eq. 10.
    """
    error = target[..., None, :] - quantiles[..., :, None]
    weight = jnp.abs(shares[:, None] - (error < 0).astype(jnp.float32))
    return jnp.sum(jnp.mean(weight * huber(error, kappa) / kappa, axis=-1), axis=-1)


def huber(error: Array, delta: float | None) -> Array:
    """Half the square, linear beyond `delta` with the derivative `delta`; None: half the square everywhere. [...].

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
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x: returns of any size in a small range. [...].

    Examples:
        >>> rescale(jnp.array([-8.0, 0.0, 99.0]), epsilon=0.0).tolist()
        [-2.0, 0.0, 9.0]

    Source: Pohlen et al. 2018 (arXiv:1805.11593), proposition A.2; Kapturowski et al. 2019 (R2D2), section 2.3.
    """
    return jnp.sign(x) * (jnp.sqrt(jnp.abs(x) + 1.0) - 1.0) + epsilon * x


def unrescale(y: Array, epsilon: float) -> Array:
    """The inverse of `rescale`. [...]."""
    # The paper's (sqrt(1 + u) - 1) / (2 epsilon) with u = 4 epsilon (|y| + 1 + epsilon), without its cancellation in float32.
    u = jnp.abs(y) + 1.0 + epsilon
    root = 2.0 * u / (jnp.sqrt(1.0 + 4.0 * epsilon * u) + 1.0)
    return jnp.sign(y) * (jnp.square(root) - 1.0)
