"""PPO of rejax (github.com/keraJLi/rejax), a package with PureJaxRL's program, on our CartPole.

It is not a dependency, since it pins others: run `pip install rejax` in a checkout, and `bench_on_device` uses it.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxsrl.bench.rivals.purejaxrl_ppo import Sizes, step_or_begin
from jaxsrl.envs.protocol import Array, JaxEnv


def has_rejax() -> bool:
    """Returns whether rejax is installed."""
    return importlib.util.find_spec("rejax") is not None


@dataclasses.dataclass(frozen=True)
class GymnaxShaped:
    """A JAX environment of discrete actions and vector observations, with the methods of gymnax that rejax calls."""

    env: JaxEnv
    default_params: None = None

    def reset(self, key: Array, params: Any) -> tuple[Array, Any]:
        """Returns first observation and state."""
        state, observation = self.env.reset(key)
        return observation, state

    def step(
        self, key: Array, state: Any, action: Array, params: Any
    ) -> tuple[Array, Any, Array, Array, dict[str, Any]]:
        """Returns one step; the observation after an end is the next episode's first."""
        state, observation, reward, done = step_or_begin(self.env, key, state, action)
        return observation, state, reward, done, {}

    def action_space(self, params: Any) -> Any:
        """Returns the gymnax space of actions."""
        spaces = importlib.import_module("gymnax.environments.spaces")
        return spaces.Discrete(self.env.spec().action.num_values)  # pyright: ignore[reportAttributeAccessIssue]

    def observation_space(self, params: Any) -> Any:
        """Returns the gymnax space of observations."""
        spaces = importlib.import_module("gymnax.environments.spaces")
        return spaces.Box(-jnp.inf, jnp.inf, self.env.spec().observation.shape)


def make_rejax_ppo(
    env: JaxEnv, sizes: Sizes, hidden_sizes: tuple[int, ...], learning_rate: float
) -> tuple[Callable[[Array], Any], Callable[[Array, Any], Any]]:
    """Returns (init(key), advance(num_updates, state)) as `make_flat_ppo` does; raises ImportError without rejax."""
    algorithm = (
        importlib.import_module("rejax")
        .get_algo("ppo")
        .create(
            env=GymnaxShaped(env),
            num_envs=sizes.num_envs,
            num_steps=sizes.rollout_length,
            num_epochs=sizes.num_epochs,
            num_minibatches=sizes.num_minibatches,
            learning_rate=learning_rate,
            max_grad_norm=0.5,
            agent_kwargs={"hidden_layer_sizes": hidden_sizes, "activation": "tanh"},
        )
    )

    def advance(num_updates: Array, state: Any) -> Any:
        return jax.lax.fori_loop(0, num_updates, lambda _, carry: algorithm.train_iteration(carry), state)

    # Not donated: leaves of its first state share memory. A copy of the state costs little compared with an update.
    return algorithm.init_state, jax.jit(advance)
