"""Bounded actions as the points of a cube that critics and actors of continuous control see."""

import re

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from agents.ops.action_scaling import continuous_actions
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl import make_env

OBSERVATION = ArraySpec((3,), "float32")


def _spec(action) -> EnvSpec:
    return EnvSpec("test", OBSERVATION, action)


def test_bounds_map_to_corners_of_the_cube():
    actions = continuous_actions(_spec(ArraySpec((2,), "float32", (-2.0, 0.0), (4.0, 0.5))))
    corners = np.array([[-2.0, 0.0], [1.0, 0.25], [4.0, 0.5]], np.float32)
    np.testing.assert_array_equal(actions.to_unit(jnp.array(corners)), [[-1, -1], [0, 0], [1, 1]])
    np.testing.assert_array_equal(actions.from_unit(jnp.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]])), corners)


def test_actions_beyond_their_bounds_are_those_executed():
    actions = continuous_actions(_spec(ArraySpec((2,), "float32", (-2.0, 0.0), (4.0, 0.5))))
    beyond = jnp.array([[-7.0, 0.25], [1.0, 0.75]])
    np.testing.assert_array_equal(actions.to_unit(beyond), [[-1, 0], [0, 1]])


def test_action_leaves_round_trip_through_one_vector():
    spec = _spec({"b": ArraySpec((2, 2), "float32", -1.0, 1.0), "a": (ArraySpec((), "float32", 0.0, 10.0),)})
    actions = continuous_actions(spec)
    unit = np.linspace(-1.0, 1.0, 3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
    action = actions.from_unit(jnp.array(unit))
    assert actions.size == 5
    np.testing.assert_allclose(action["a"][0], 5.0 + 5.0 * unit[..., 0], rtol=1e-6)
    np.testing.assert_allclose(action["b"], unit[..., 1:].reshape(3, 4, 2, 2), rtol=1e-6)
    np.testing.assert_allclose(actions.to_unit(action), unit, atol=1e-6)


@pytest.mark.parametrize("high", [np.inf, np.finfo(np.float32).max])
def test_the_advice_for_unbounded_actions_works(high):
    class Free(gymnasium.Env):
        observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        action_space = spaces.Box(-high, high, (2,), np.float32)

    with pytest.raises(UserError, match=r"gymnasium.wrappers.TransformAction\(env, f, Box\(-1, 1, \(2,\)\)\)") as error:
        continuous_actions(make_env(Free).spec())
    advice = re.search(r"gymnasium.wrappers.TransformAction\(env, f, .*?\)\)\)", str(error.value))
    names = {"gymnasium": gymnasium, "Box": spaces.Box, "f": lambda action: 10.0 * action}
    wrapped = lambda: eval(advice.group(), {**names, "env": Free()})  # noqa: E731
    assert continuous_actions(make_env(wrapped).spec()).size == 2


def test_rounding_never_leaves_the_bounds():
    rng = np.random.default_rng(0)
    low = rng.normal(size=500).astype(np.float32)
    high = (low + rng.random(500)).astype(np.float32)
    actions = continuous_actions(_spec(ArraySpec((500,), "float32", tuple(low.tolist()), tuple(high.tolist()))))
    for side in (-1.0, 1.0):
        action = np.asarray(actions.from_unit(jnp.full((500,), side)))
        assert (action >= low).all()
        assert (action <= high).all()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (ArraySpec((2,), "float32"), r"finite bounds.*got action between None and None"),
        ({"x": ArraySpec((2,), "float32", -1.0, (1.0, np.inf))}, r"finite bounds.*action\['x'\]"),
        (ArraySpec((2,), "float32", (0.0, 1.0), (1.0, 1.0)), r"got 1.0 and 1.0 for element 1 of action"),
        ({"x": ArraySpec((2,), "float32", -1.0, 1.0), "y": DiscreteSpec(3)}, r"continuous actions.*action\['y'\]"),
        (ArraySpec((2,), "int32", 0, 5), r"arrays of floats"),
    ],
)
def test_unscalable_action_leaf_is_named(action, message):
    with pytest.raises(UserError, match=message):
        continuous_actions(_spec(action))
