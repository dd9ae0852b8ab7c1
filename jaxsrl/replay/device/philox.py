"""Philox random numbers from a key and a counter, bit-for-bit identical in a compiled program and in numpy.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x64-10. numpy has it as a bit generator and
guarantees its stream. A key gives one stream, and the counter numbers its blocks of four. The host uses numpy and needs no
compiled program.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_MOST_WORDS = 4
# Of no dimension: numpy takes such arrays as they are, where it would convert a number each time.
_LOW = np.array(0xFFFFFFFF, np.uint64)
_HALF = np.array(32, np.uint64)

Pair = tuple[Array, Array]
"""Low and high 32 bits of a 64-bit number."""


def random_bits(words: Array, count: int) -> Array:
    """Returns the first `count` 64-bit numbers of a key's stream, in a compiled program.

    Args:
        words: [W] uint32, W at most 4: the key, which is consumed.
        count: number of 64-bit numbers.

    Returns:
        [count, 2] uint32, the low and the high half of each.
    """
    key = jnp.zeros(_MOST_WORDS, jnp.uint32).at[: words.size].set(words.reshape(-1))
    # numpy increments the counter before a draw: the first block is number 1.
    low = jnp.arange(1, -(-count // 4) + 1, dtype=jnp.uint32)
    zero = jnp.zeros_like(low)

    def one_round(number: Array, counter: tuple[Pair, ...]) -> tuple[Pair, ...]:
        rounds = number.astype(jnp.uint32)
        first, second = (_key_of_round(key, which, rounds) for which in (0, 1))
        low_0, high_0 = _multiply(counter[0], _MULTIPLIERS[0])
        low_1, high_1 = _multiply(counter[2], _MULTIPLIERS[1])
        return _xor(high_1, counter[1], first), low_1, _xor(high_0, counter[3], second), low_0

    blocks = jax.lax.fori_loop(0, _ROUNDS, one_round, ((low, zero), (zero, zero), (zero, zero), (zero, zero)))
    return jnp.stack([jnp.stack(pair, axis=-1) for pair in blocks], axis=1).reshape(-1, 2)[:count]


def bounded(bits: Array, limit: Array) -> Array:
    """Returns integers in [0, limit), uniform up to a bias of limit / 2^64.

    Args:
        bits: [n, 2] uint32, of `random_bits`.
        limit: int32 scalar, positive.

    Returns:
        [n] int32.
    """
    limit = limit.astype(jnp.uint32)
    _, carry = _wide(bits[:, 0], limit)
    low, high = _wide(bits[:, 1], limit)
    return (high + (low + carry < low)).astype(jnp.int32)


def uniforms(bits: Array) -> Array:
    """Returns [2 n] float32 in [0, 1), multiples of 2^-24, from [n, 2] uint32: the low half of a number, then the high one."""
    return (bits.reshape(-1) >> 8).astype(jnp.float32) * np.float32(2**-24)


class HostRandom:
    """The same numbers in numpy. Every draw sets the key, so there is no state. Thread-safety: one thread at a time."""

    def __init__(self) -> None:
        self._generator = np.random.Philox(key=0)
        self._key, zeros = np.zeros(2, np.uint64), np.zeros(4, np.uint64)
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": zeros, "key": self._key},
            "buffer": zeros,
            "buffer_pos": 4,  # buffer is empty
            "has_uint32": 0,
            "uinteger": 0,
        }

    def bits(self, words: np.ndarray, count: int) -> np.ndarray:
        """Returns [count] uint64 of a key [W] uint32; see `random_bits`."""
        key = self._key
        numbers = words.tolist()
        numbers += [0] * (_MOST_WORDS - len(numbers))
        key[0], key[1] = numbers[0] | numbers[1] << 32, numbers[2] | numbers[3] << 32
        self._generator.state = self._state
        return self._generator.random_raw(count)

    def bounded(self, words: np.ndarray, count: int, limit: np.ndarray) -> np.ndarray:
        """Returns [count] int64 in [0, limit); see `bounded`. `limit` is a 0-d uint64 array."""
        bits = self.bits(words, count)
        high = bits >> _HALF
        high *= limit
        bits &= _LOW
        bits *= limit
        bits >>= _HALF
        bits += high
        bits >>= _HALF
        return bits.view(np.int64)

    def uniforms(self, words: np.ndarray, count: int) -> np.ndarray:
        """Returns [count] float32; see `uniforms`."""
        halves = self.bits(words, -(-count // 2)).view(np.uint32)
        if sys.byteorder != "little":
            halves = halves.reshape(-1, 2)[:, ::-1].reshape(-1)
        numbers = (halves[:count] >> np.uint32(8)).astype(np.float32)
        numbers *= np.float32(2**-24)
        return numbers


def _key_of_round(key: Array, which: int, rounds: Array) -> Pair:
    """Returns key number `which` plus `rounds` times its Weyl number, modulo 2^64."""
    weyl_low, weyl_high = (np.uint32(half) for half in (_WEYL[which] & 0xFFFFFFFF, _WEYL[which] >> 32))
    low, carry = _wide(rounds, weyl_low)
    key_low, key_high = key[2 * which], key[2 * which + 1]
    total = key_low + low
    return total, key_high + rounds * weyl_high + carry + (total < low).astype(jnp.uint32)


def _multiply(number: Pair, by: int) -> tuple[Pair, Pair]:
    """Returns the low and the high 64 bits of a product of 64-bit numbers."""
    low, high = number
    by_low, by_high = np.uint32(by & 0xFFFFFFFF), np.uint32(by >> 32)
    low_low, a = _wide(low, by_low)
    b, c = _wide(low, by_high)
    d, e = _wide(high, by_low)
    f, g = _wide(high, by_high)
    second = a + b
    carry = (second < a).astype(jnp.uint32)
    second = second + d
    carry = carry + (second < d)
    third = c + e
    above = (third < c).astype(jnp.uint32)
    third = third + f
    above = above + (third < f)
    third = third + carry
    above = above + (third < carry)
    return (low_low, second), (third, g + above)


def _wide(one: Array, other: Any) -> Pair:
    """Returns the product of two uint32, by halves of 16 bits."""
    mask, shift = np.uint32(0xFFFF), np.uint32(16)
    one_low, one_high = one & mask, one >> shift
    other_low, other_high = other & mask, other >> shift
    middle = one_high * other_low + ((one_low * other_low) >> shift)
    cross = one_low * other_high + (middle & mask)
    return one * other, one_high * other_high + (middle >> shift) + (cross >> shift)


def _xor(one: Pair, other: Pair, third: Pair) -> Pair:
    return one[0] ^ other[0] ^ third[0], one[1] ^ other[1] ^ third[1]
