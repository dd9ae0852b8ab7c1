"""Random numbers of one world: splitmix64 (Steele et al. 2014, "Fast splittable pseudorandom number generators")."""

import numpy as np

from envpool_bridge.envs.hide_and_seek.planar.compiled import compiled

_STEP, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@compiled
def uniform(random: np.ndarray) -> float:
    """Draws a number in [0, 1); `random` is [1] uint64, the state."""
    random[0] = random[0] + _STEP
    z = random[0]
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    z = z ^ (z >> _S31)
    return np.float64(z >> _S11) * (1.0 / 9007199254740992.0)


@compiled
def below(random: np.ndarray, count: int) -> int:
    """Draws an integer in [0, count)."""
    return int(uniform(random) * count)


@compiled
def between(random: np.ndarray, low: int, high: int) -> int:
    """Draws an integer in [low, high)."""
    return low + below(random, high - low)
