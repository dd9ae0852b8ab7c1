"""Conversion between environment values and stored values."""

import numpy as np
import pytest

from envpool_bridge.spec.encoding import restored, store
from envpool_bridge.spec.specs import DiscreteSpec


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        (DiscreteSpec(10, start=-5), np.array([-5, 0, 4])),
        (DiscreteSpec(10, start=-5), np.array([0, 1, 4], np.uint8)),
        (DiscreteSpec(220, start=-100), np.array([-100, 100, 119], np.int8)),
        (DiscreteSpec(5, start=300), np.array([300, 302, 304], np.uint16)),
        (DiscreteSpec(5, start=3), np.array([3, 5, 7], np.uint64)),
    ],
    ids=lambda value: str(getattr(value, "dtype", getattr(value, "start", ""))),
)
def test_discrete_values_of_any_integer_type_return(spec, values):
    out = np.empty(3, np.int32)
    store(spec, values, out)
    np.testing.assert_array_equal(out, [int(value) - spec.start for value in values])
    np.testing.assert_array_equal(restored(spec, out), values.astype(np.int64))
