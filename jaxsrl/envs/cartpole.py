"""CartPole-v1 in JAX, with the dynamics of Gymnasium's.

Source: Barto, Sutton and Anderson 1983; equations as corrected by Florian 2007 (coneural.org/florian/papers/05_cart_pole.pdf),
eq. 23 and 24 without friction, integrated by explicit Euler.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.protocol import Array, JaxStep

_GRAVITY = 9.8  # m/s^2
_POLE_MASS = 0.1  # kg
_TOTAL_MASS = 1.1  # kg, of cart and pole
_HALF_LENGTH = 0.5  # m, of the pole
_FORCE = 10.0  # N, to the right for action 1, to the left for action 0
_STEP_SECONDS = 0.02
_MAX_POSITION = 2.4  # m
_MAX_ANGLE = math.radians(12.0)
_FIRST_RANGE = 0.05  # bound of each of the first four numbers


class CartPoleState(NamedTuple):
    """State of one environment.

    Attributes:
        physics: [4] float32 (m, m/s, rad, rad/s), which is also the observation.
        num_steps: [] int32, steps since the reset.
    """

    physics: Array
    num_steps: Array


@dataclasses.dataclass(frozen=True)
class CartPole:
    """`JaxEnv` of CartPole-v1. Reward 1 per step; float32 throughout, where Gymnasium computes in float64.

    Attributes:
        max_steps: time limit; the step that reaches it is truncated, even if it is also terminated (as in Gymnasium's
            TimeLimit).
    """

    max_steps: int = 500

    def spec(self) -> EnvSpec:
        """Returns Gymnasium's spec: bounds are twice the thresholds, so that the last observation is within them."""
        high = tuple(np.array([2 * _MAX_POSITION, math.inf, 2 * _MAX_ANGLE, math.inf], np.float32).tolist())
        low = tuple(-value for value in high)
        return EnvSpec("CartPole-v1", ArraySpec((4,), "float32", low, high), DiscreteSpec(2))

    def reset(self, key: Array) -> tuple[CartPoleState, Array]:
        """Returns a state of four numbers uniform in [-0.05, 0.05]."""
        physics = jax.random.uniform(key, (4,), jnp.float32, -_FIRST_RANGE, _FIRST_RANGE)
        return CartPoleState(physics, jnp.int32(0)), physics

    def step(self, state: CartPoleState, action: Array, key: Array) -> JaxStep:
        """Integrates one Euler step of 0.02 s; it is deterministic, so `key` is unused."""
        del key
        _, x_dot, theta, theta_dot = state.physics
        force = jnp.where(action == 1, _FORCE, -_FORCE)
        cos, sin = jnp.cos(theta), jnp.sin(theta)
        pole_moment = _POLE_MASS * _HALF_LENGTH
        push = (force + pole_moment * jnp.square(theta_dot) * sin) / _TOTAL_MASS
        theta_acc = (_GRAVITY * sin - cos * push) / (
            _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * jnp.square(cos) / _TOTAL_MASS)
        )
        x_acc = push - pole_moment * theta_acc * cos / _TOTAL_MASS
        velocity = jnp.stack([x_dot, x_acc, theta_dot, theta_acc])
        physics = state.physics + _STEP_SECONDS * velocity
        num_steps = state.num_steps + 1
        terminated = (jnp.abs(physics[0]) > _MAX_POSITION) | (jnp.abs(physics[2]) > _MAX_ANGLE)
        return JaxStep(
            CartPoleState(physics, num_steps), physics, jnp.float32(1.0), terminated, num_steps >= self.max_steps
        )
