"""Random numbers: Philox by its equations in Python's whole numbers, alike in numpy and in a compiled program, and random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsrl.replay.device.philox import HostRandom, bounded, random_bits, uniforms

KEYS = [[0, 0], [2**32 - 1, 2**32 - 1], [2**32 - 1] * 4, [1, 2, 3, 4], [0x9E3779B9, 0x7F4A7C15]]
program = jax.jit(random_bits, static_argnums=1)


def philox(words, count):
    """Salmon et al. 2011, section 3.3: rounds of two products of 64 bits, keys raised by Weyl's numbers."""
    modulus = 2**64
    key = sum(word << 32 * place for place, word in enumerate(words))
    numbers = []
    for block in range(1, -(-count // 4) + 1):
        a, b, c, d = block, 0, 0, 0
        first, second = key % modulus, key // modulus
        for _ in range(10):
            one, other = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
            a, b, c, d = other // modulus ^ b ^ first, other % modulus, one // modulus ^ d ^ second, one % modulus
            first, second = (first + 0x9E3779B97F4A7C15) % modulus, (second + 0xBB67AE8584CAA73B) % modulus
        numbers += [a, b, c, d]
    return numbers[:count]


def key_of(words):
    return np.array(words, np.uint32)


@pytest.mark.parametrize("words", KEYS)
def test_numpy_and_the_program_draw_what_the_equations_say(words):
    expected = np.array(philox(words, 30), np.uint64)
    np.testing.assert_array_equal(HostRandom().bits(key_of(words), 30), expected)
    found = np.asarray(program(key_of(words), 30), np.uint64)
    np.testing.assert_array_equal(found[:, 0] | found[:, 1] << np.uint64(32), expected)


def test_random_bits_match_numpy_for_many_keys():
    keys = np.random.default_rng(0).integers(0, 2**32, (300, 2), dtype=np.uint32)
    limits = np.random.default_rng(1).integers(1, 2**31 - 1, 300).astype(np.int32)
    limits[:3] = 1, 2, 2**31 - 1

    @jax.jit
    def draw(keys, limits):
        bits = jax.vmap(lambda words: random_bits(words, 13))(keys)
        return jax.vmap(bounded)(bits, limits), jax.vmap(uniforms)(bits)

    whole, real = draw(keys, limits)
    host = HostRandom()
    for number, (words, limit) in enumerate(zip(keys, limits, strict=True)):
        np.testing.assert_array_equal(host.bounded(words, 13, np.array(limit, np.uint64)), whole[number])
        np.testing.assert_array_equal(host.uniforms(words, 25), real[number][:25])
        raw = host.bits(words, 13).tolist()
        assert whole[number].tolist() == [bits * int(limit) // 2**64 for bits in raw]
        halves = [half for bits in raw for half in (bits % 2**32, bits // 2**32)]
        assert real[number].tolist() == [half // 2**8 / 2**24 for half in halves]


def test_numbers_never_reach_their_limits():
    most = jnp.full((1, 2), 2**32 - 1, jnp.uint32)
    assert float(uniforms(most).max()) == 1 - 2**-24
    for limit in (1, 3, 2**31 - 1):
        assert int(bounded(most, jnp.asarray(limit, jnp.int32))[0]) == limit - 1


def test_uniforms_of_adjacent_keys_are_uniform_and_independent():
    host = HostRandom()
    limit, count = np.array(100, np.uint64), 256
    keys = np.arange(8192, dtype=np.uint32).reshape(4096, 2)
    found = np.stack([host.bounded(words, count, limit) for words in keys])
    expected = found.size / 100
    chi_square = ((np.bincount(found.ravel(), minlength=100) - expected) ** 2 / expected).sum()
    assert 60.0 < chi_square < 149.0  # 99 degrees of freedom: all but two in a thousand
    # Each place of all streams, and pairs of neighbors within a stream and of neighboring streams.
    for places in (found[:, 0], found[:, 137]):
        assert ((np.bincount(places, minlength=100) - 40.96) ** 2 / 40.96).sum() < 149.0
    for one, other in ((found[:, :-1], found[:, 1:]), (found[:-1], found[1:]), (found[:, :-4], found[:, 4:])):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 4 / np.sqrt(one.size)
        pairs = np.bincount((one // 10 * 10 + other // 10).ravel(), minlength=100)
        expected = one.size / 100
        assert ((pairs - expected) ** 2 / expected).sum() < 149.0


def test_bits_of_real_numbers_are_fair():
    host = HostRandom()
    found = np.concatenate([host.uniforms(np.array([number, 7], np.uint32), 1024) for number in range(1000)])
    whole = (found * 2**24).astype(np.int64)
    for bit in range(24):
        ones = int(((whole >> bit) & 1).sum())
        assert abs(ones - found.size / 2) < 4.5 * np.sqrt(found.size / 4)
    assert abs(found.mean() - 0.5) < 4 * np.sqrt(1 / 12 / found.size)


def test_streams_of_different_keys_share_no_number():
    host = HostRandom()
    keys = [[number, 0] for number in range(500)] + [[0, number] for number in range(1, 500)]
    keys += [[0, 0, number, 0] for number in range(1, 500)]
    found = np.concatenate([host.bits(key_of(words), 256) for words in keys])
    assert len(np.unique(found)) == len(found)


def test_one_draw_knows_nothing_of_the_one_before():
    host, words = HostRandom(), key_of([5, 6])
    first = host.bits(words, 7)
    host.bits(key_of([8, 9]), 3)
    np.testing.assert_array_equal(host.bits(words, 9)[:7], first)
