"""JAX environments with levels: the key of an episode's reset follows from its level alone."""

import dataclasses

from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.envs.protocol import Array, EnvState, JaxEnv, JaxStep, Observation


@dataclasses.dataclass(frozen=True)
class LevelsJaxEnv:
    """`JaxEnv` of another environment, whose spec has levels; `jaxsrl.envs.autoreset` makes the keys.

    Attributes:
        env: the other environment.
        levels: their number.
    """

    env: JaxEnv
    levels: int

    def spec(self) -> EnvSpec:
        """Returns the environment's spec with the number of levels."""
        return dataclasses.replace(self.env.spec(), levels=self.levels)

    def reset(self, key: Array) -> tuple[EnvState, Observation]:
        """Returns the first state and observation of the environment."""
        return self.env.reset(key)

    def step(self, state: EnvState, action: Array, key: Array) -> JaxStep:
        """Steps the environment."""
        return self.env.step(state, action, key)
