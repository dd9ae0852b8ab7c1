"""Numbers of unknown scale: symmetric logarithms, and categories at exponentially spaced atoms.

Source: Hafner et al. 2025 (DreamerV3, arXiv:2301.04104), "Robust predictions".
"""

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array
from agents.ops.returns import weighted_mean

_LARGEST = 20.0  # of the atoms, before symexp: 4.9e8


def symlog(x: Array) -> Array:
    """Returns sign(x) log(1 + |x|).

    Examples:
        >>> symlog(jnp.array([-1.0, 0.0, 1.0])).round(3).tolist()
        [-0.6930000185966492, 0.0, 0.6930000185966492]
    """
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: Array) -> Array:
    """Returns sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def symexp_atoms(num_atoms: int) -> np.ndarray:
    """Returns an odd number K of atoms [K] float32 from symexp(-20) to symexp(20), exactly symmetric around 0."""
    lower = -np.expm1(np.linspace(_LARGEST, 0.0, (num_atoms + 1) // 2)).astype(np.float32)
    return np.concatenate([lower, -lower[-2::-1]])


def symexp_two_hot(x: Array, num_atoms: int) -> Array:
    """Returns the probabilities [..., K] of the two atoms next to each number whose mean is the number.

    Examples:
        >>> symexp_two_hot(jnp.array(0.0), num_atoms=3).tolist()
        [0.0, 1.0, 0.0]

    Args:
        x: [...] float32. Numbers beyond the last atoms count as those.
        num_atoms: K, odd.
    """
    atoms = jnp.asarray(symexp_atoms(num_atoms))
    x = jnp.clip(x, atoms[0], atoms[-1])[..., None]
    below = jnp.clip(jnp.sum(atoms <= x, axis=-1) - 1, 0, num_atoms - 2)
    low, high = atoms[below][..., None], atoms[below + 1][..., None]
    share = (x - low) / (high - low)
    return (1.0 - share) * jax.nn.one_hot(below, num_atoms) + share * jax.nn.one_hot(below + 1, num_atoms)


def clamped_fraction(returns: Array, reward: Array, known: Array) -> Array:
    """Returns the share of returns, or of known rewards if it is larger, that `symexp_two_hot` clamps."""
    beyond_returns, beyond_rewards = (jnp.abs(x) > np.expm1(_LARGEST) for x in (returns, reward))
    return jnp.maximum(jnp.mean(beyond_returns), weighted_mean(beyond_rewards, known))


def symexp_mean(logits: Array) -> Array:
    """Returns the mean [...] of the atoms under logits [..., K]; exactly 0 for equal logits, because opposite atoms are paired."""
    num_atoms = logits.shape[-1]
    weighted = jax.nn.softmax(logits) * symexp_atoms(num_atoms)
    half = num_atoms // 2
    pairs = weighted[..., :half] + weighted[..., num_atoms - half :][..., ::-1]
    return jnp.sum(pairs, axis=-1)
