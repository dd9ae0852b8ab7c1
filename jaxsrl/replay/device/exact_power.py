"""x^alpha in integer arithmetic, bit-for-bit identical in a compiled program on any device and in numpy.

Libraries round powers of float32 differently, and a sum-tree of weights would differ with them. Here logarithm and
exponential are tables of 4096 parts with linear interpolation, in 30 fractional bits. The result is within 9e-8 of the
power, of which 6e-8 are the rounding to float32.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array

_PARTS = 4096
_ONE = 2**30
# 0-d arrays: numpy would convert a Python number on each use.
_BITS = {number: np.array(number, np.uint32) for number in (5, 7, 11, 13, 18, 23, 30, 64)}
_BITS_BELOW = {number: np.array(2**number - 1, np.uint32) for number in (11, 12, 13, 30)}
_TINY = np.float32(2.0**-126)  # below it, processors differ


@dataclasses.dataclass(frozen=True, eq=False)
class _Tables:
    """Tables of one exponent; uint32. Pairs are adjacent, so that one lookup reads both.

    Attributes:
        log: [4096, 2] alpha log2(1 + i / 4096) in 2^-30, and the difference to the next.
        shift: [256, 2] alpha times the exponent of a float32 with these bits: integer part plus 127, and fraction in 2^-30.
        exp: [4096, 2] 2^(i / 4096) - 1 in 2^-30, and the difference to the next.
    """

    log: np.ndarray
    shift: np.ndarray
    exp: np.ndarray


@functools.cache
def _tables(exponent: float) -> _Tables:
    places = np.arange(_PARTS + 1) / _PARTS
    log, exp = np.rint(exponent * np.log2(1.0 + places) * _ONE), np.rint((2.0**places - 1.0) * _ONE)
    scaled = np.rint(exponent * (np.arange(256) - 127.0) * _ONE)
    whole = np.floor(scaled / _ONE)
    pairs = ((log[:-1], np.diff(log)), (whole + 127, scaled - whole * _ONE), (exp[:-1], np.diff(exp)))
    return _Tables(*(np.stack(pair, axis=1).astype(np.uint32) for pair in pairs))


def power(base: Array, exponent: float) -> Array:
    """Returns the power of each number, in a compiled program.

    Args:
        base: [n] float32, positive and finite.
        exponent: Exponent in (0, 1].

    Returns:
        [n] float32.
    """
    if exponent == 1.0:
        return base

    def look_up(table: np.ndarray, place: Array) -> Array:
        return jnp.asarray(table).at[place].get(mode="promise_in_bounds")

    bits = jax.lax.bitcast_convert_type(jnp.maximum(base, _TINY), jnp.uint32)
    return jax.lax.bitcast_convert_type(_power(bits, _tables(exponent), look_up), jnp.float32)


def power_on_host(base: np.ndarray, exponent: float) -> np.ndarray:
    """Returns the same power in numpy."""
    if exponent == 1.0:
        return base
    bits = np.maximum(base, _TINY).view(np.uint32)
    return _power(bits, _tables(exponent), lambda table, place: table.take(place, 0)).view(np.float32)


def _power(bits: Any, tables: _Tables, look_up: Any) -> Any:
    """Returns the uint32 bits of the powers of float32 numbers given as bits. Arrays are of jax or of numpy."""
    log = look_up(tables.log, (bits >> _BITS[11]) & _BITS_BELOW[12])
    shift = look_up(tables.shift, bits >> _BITS[23])
    exponent = log[..., 0] + ((log[..., 1] * (bits & _BITS_BELOW[11])) >> _BITS[11]) + shift[..., 1]
    part = exponent & _BITS_BELOW[30]
    exp = look_up(tables.exp, part >> _BITS[18])
    mantissa = exp[..., 0] + ((exp[..., 1] * ((part >> _BITS[5]) & _BITS_BELOW[13])) >> _BITS[13])
    # A mantissa that rounds up to 2 carries over into the exponent, as it should.
    return ((shift[..., 0] + (exponent >> _BITS[30])) << _BITS[23]) + ((mantissa + _BITS[64]) >> _BITS[7])
