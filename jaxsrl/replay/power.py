"""x^alpha in whole numbers: what a compiled program, on any device, and numpy compute alike, to the bit.

Powers of float32 are rounded differently by every library, and a sum-tree of weights would differ with them. Here logarithm and
exponential are tables of 4096 parts with straight lines between, in 30 bits after the point: within 9e-8 of the power, of which 6e-8 are
the rounding to float32.
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
_TINY = np.float32(2.0**-126)  # below it, processors differ


@dataclasses.dataclass(frozen=True, eq=False)
class _Tables:
    """Of one exponent; uint32 but for `whole`.

    Attributes:
        log, log_step: [4096] alpha log2(1 + i / 4096) in 2^-30, and the difference to the next.
        whole: [256] int32, of alpha times the exponent of a float32 with these bits.
        part: [256] what follows its point, in 2^-30.
        exp, exp_step: [4096] 2^(i / 4096) - 1 in 2^-30, and the difference to the next.
    """

    log: np.ndarray
    log_step: np.ndarray
    whole: np.ndarray
    part: np.ndarray
    exp: np.ndarray
    exp_step: np.ndarray


@functools.cache
def _tables(exponent: float) -> _Tables:
    places = np.arange(_PARTS + 1) / _PARTS
    log, exp = np.rint(exponent * np.log2(1.0 + places) * _ONE), np.rint((2.0**places - 1.0) * _ONE)
    scaled = np.rint(exponent * (np.arange(256) - 127.0) * _ONE)
    whole = np.floor(scaled / _ONE)
    small = [values.astype(np.uint32) for values in (log[:-1], np.diff(log), scaled - whole * _ONE, exp[:-1], np.diff(exp))]
    return _Tables(small[0], small[1], whole.astype(np.int32), *small[2:])


def power(base: Array, exponent: float) -> Array:
    """base ** exponent, in a compiled program.

    Args:
        base: [n] float32, positive and finite.
        exponent: in (0, 1].

    Returns:
        [n] float32.
    """
    if exponent == 1.0:
        return base
    tables = _tables(exponent)

    def look_up(table: np.ndarray, place: Array) -> Array:
        return jnp.asarray(table).at[place].get(mode="promise_in_bounds")

    bits = jax.lax.bitcast_convert_type(jnp.maximum(base, _TINY), jnp.uint32)
    return jax.lax.bitcast_convert_type(_power(bits, tables, look_up), jnp.float32)


def power_on_host(base: np.ndarray, exponent: float) -> np.ndarray:
    """The same in numpy."""
    if exponent == 1.0:
        return base
    bits = np.maximum(base, _TINY).view(np.uint32)
    return _power(bits, _tables(exponent), np.ndarray.take).view(np.float32)


def _power(bits: Any, tables: _Tables, look_up: Any) -> Any:
    """uint32 bits of the powers of float32 numbers with these bits; the same operations on arrays of either kind."""
    uint32 = np.uint32
    shift, place = bits >> uint32(23), (bits >> uint32(11)) & uint32(_PARTS - 1)
    between = look_up(tables.log_step, place) * (bits & uint32(2**11 - 1))
    log = look_up(tables.log, place) + (between >> uint32(11)) + look_up(tables.part, shift)
    whole = look_up(tables.whole, shift) + (log >> uint32(30)).astype(np.int32)
    part = log & uint32(_ONE - 1)
    place = part >> uint32(18)
    between = look_up(tables.exp_step, place) * ((part >> uint32(5)) & uint32(2**13 - 1))
    exp = look_up(tables.exp, place) + (between >> uint32(13))
    # A mantissa that rounds up to 2 carries over into the exponent, as it should.
    return ((whole + np.int32(127)).astype(uint32) << uint32(23)) + ((exp + uint32(64)) >> uint32(7))
