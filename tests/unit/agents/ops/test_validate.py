"""Range checks of configuration fields."""

import re
from types import SimpleNamespace

import jax
import pytest

from agents.ops import validate
from envpool_bridge.errors import UserError

NAN = float("nan")


@pytest.mark.parametrize(
    ("check", "valid", "invalid", "message"),
    [
        (validate.at_least_one, (1, 7), (0, -1), "x must be at least 1: got {}"),
        (validate.positive, (None, 1e-9, 3.0), (0.0, -1.0, NAN), "x must be positive: got {}"),
        (validate.not_negative, (None, 0.0, 2.0), (-0.1, NAN), "x must not be negative: got {}"),
        (validate.fraction, (0.0, 1.0), (-0.1, 1.1, NAN), "x must lie in [0, 1]: got {}"),
    ],
)
def test_field_out_of_range_is_named(check, valid, invalid, message):
    for value in valid:
        check(SimpleNamespace(x=value), "x")
    for value in invalid:
        with pytest.raises(UserError, match=re.escape(message.format(value))):
            check(SimpleNamespace(fine=1, x=value), "fine", "x")


def test_an_argument_of_a_compiled_program_passes():
    @jax.jit
    def program(x):
        validate.positive(SimpleNamespace(x=x), "x")
        validate.not_negative(SimpleNamespace(x=x), "x")
        return x

    assert program(3.0) == 3.0


def test_fraction_above_zero_rejects_zero():
    validate.fraction(SimpleNamespace(tau=1.0), "tau", above_zero=True)
    for tau in (0.0, 1.5, NAN):
        with pytest.raises(UserError, match=r"tau must lie in \(0, 1\]"):
            validate.fraction(SimpleNamespace(tau=tau), "tau", above_zero=True)
