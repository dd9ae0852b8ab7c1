"""Powers are those of float64 but for rounding, and the same in numpy and in a compiled program."""

import jax
import numpy as np
import pytest

from jaxsrl.replay.device.exact_power import power, power_on_host

program = jax.jit(power, static_argnums=1)


def numbers():
    """Of every size that priorities have, and the ends of what float32 can hold."""
    rng = np.random.default_rng(0)
    some = np.exp(rng.uniform(-87.0, 88.0, 20_000))
    ends = [2.0**-126, 1.0, np.nextafter(np.float32(1), np.float32(0)), 2.0, 3.4e38, 1e-6, 0.25]
    return np.concatenate([some, rng.random(20_000), 2.0 ** np.arange(-126, 128), ends]).astype(np.float32)


@pytest.mark.parametrize("exponent", [0.01, 0.5, 0.6, 0.999])
def test_powers_are_those_of_float64_and_alike_to_the_bit(exponent):
    base = numbers()
    found = power_on_host(base, exponent)
    np.testing.assert_allclose(found, base.astype(float) ** exponent, rtol=9e-8)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(program(base, exponent), found)
    np.testing.assert_array_equal(program(base[7], exponent), found[7])


def test_an_exponent_of_one_leaves_numbers_as_they_are():
    base = numbers()
    np.testing.assert_array_equal(power_on_host(base, 1.0), base)
    np.testing.assert_array_equal(program(base, 1.0), base)


def test_what_is_too_small_for_float32_counts_as_the_smallest():
    small = np.array([0.0, 1e-45, 1e-40], np.float32)
    expected = np.full(3, (2.0**-126) ** 0.5)
    np.testing.assert_allclose(power_on_host(small, 0.5), expected, rtol=9e-8)
    np.testing.assert_allclose(program(small, 0.5), expected, rtol=9e-8)
