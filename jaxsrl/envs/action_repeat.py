"""JAX environments that repeat each action; see `envpool_bridge.envs.action_repeat`."""

import dataclasses

import jax
import jax.numpy as jnp

from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.envs.protocol import Array, EnvState, JaxEnv, JaxStep, Observation


@dataclasses.dataclass(frozen=True)
class ActionRepeatJaxEnv:
    """`JaxEnv` whose step is up to `repeat` steps of another environment.

    Attributes:
        env: the other environment.
        repeat: steps of `env` for each step, at least 1.
    """

    env: JaxEnv
    repeat: int

    def spec(self) -> EnvSpec:
        """Returns the environment's spec."""
        spec = self.env.spec()
        return dataclasses.replace(spec, action_repeat=spec.action_repeat * self.repeat)

    def reset(self, key: Array) -> tuple[EnvState, Observation]:
        """Returns the first state and observation of an episode."""
        return self.env.reset(key)

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        """Steps until the episode ends, at most `repeat` times; the n-th step has the n-th of `repeat` keys split off `key`."""
        keys = jax.random.split(key, self.repeat)

        def repeated(step: JaxStep, key: Array) -> tuple[JaxStep, None]:
            after = self.env.step(step.state, action, key)
            after = after._replace(reward=step.reward + after.reward)
            ended = step.terminated | step.truncated
            return jax.tree.map(lambda old, new: jnp.where(ended, old, new), step, after), None

        return jax.lax.scan(repeated, self.env.step(state, action, keys[0]), keys[1:])[0]
