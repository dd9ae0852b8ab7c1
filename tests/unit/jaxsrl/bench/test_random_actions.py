"""Random actions of the pool's benchmarks: every leaf legal, every value drawn."""

import numpy as np

from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, MultiDiscreteSpec
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.bench.random_actions import random_actions


def test_every_leaf_has_its_shape_dtype_and_range():
    action = {
        "gear": DiscreteSpec(3, start=-1),
        "on": (MultiDiscreteSpec((2,), (2, 5), (0, 0)), ArraySpec((2,), "float32", (-1.0, 2.0), (1.0, 4.0))),
        "free": ArraySpec((), "float32"),
    }
    spec = EnvSpec("any", ArraySpec((1,), "float32"), action)
    drawn = map_leaves(lambda *rows: np.stack(rows), *random_actions(spec, 20))
    assert drawn["gear"].shape == (97, 20)
    assert drawn["gear"].dtype == np.int32
    assert set(drawn["gear"].ravel()) == {0, 1, 2}
    choices, bounded = drawn["on"]
    assert choices.shape == bounded.shape == (97, 20, 2)
    assert [set(choices[..., place].ravel()) for place in (0, 1)] == [{0, 1}, {0, 1, 2, 3, 4}]
    low, high = bounded.min((0, 1)), bounded.max((0, 1))
    np.testing.assert_allclose(low, [-1, 2], atol=0.02)
    np.testing.assert_allclose(high, [1, 4], atol=0.02)
    assert drawn["free"].shape == (97, 20)
    assert abs(drawn["free"].std() - 1) < 0.1
