"""Rock-paper-scissors in JAX: the smallest symmetric game of two players whose only equilibrium is mixed, 1/3 each."""

import dataclasses

import jax.numpy as jnp

from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.protocol import Array, JaxStep

_SEEN, _CHOSEN = ArraySpec((1,), "float32", 0.0, 1.0), DiscreteSpec(3)


@dataclasses.dataclass(frozen=True)
class RockPaperScissors:
    """`JaxEnv` of two players, who both see the constant 1 and choose rock (0), paper (1) or scissors (2).

    The reward of a round is 1 for the winner, -1 for the loser, 0 for equal choices.

    Attributes:
        rounds: rounds of an episode.
    """

    rounds: int = 10

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UserError(f"RockPaperScissors-v1: rounds must be at least 1: got {self.rounds}")

    def spec(self) -> EnvSpec:
        """Returns the spec of a player."""
        agents = tuple(AgentSpec(name, _SEEN, _CHOSEN) for name in ("player_0", "player_1"))
        return EnvSpec("RockPaperScissors-v1", _SEEN, _CHOSEN, agents=agents)

    def reset(self, key: Array) -> tuple[Array, Array]:
        """Returns 0 rounds played and what both see; `key` is unused."""
        del key
        return jnp.zeros((), jnp.int32), jnp.ones((2, 1), jnp.float32)

    def step(self, state: Array, action: Array, key: Array) -> JaxStep:
        """Plays one round; `action` is [2]. The rules have no chance, so `key` is unused."""
        del key
        # 0 for equal choices, 1 if the first player wins, 2 if it loses.
        outcome = (action[0] - action[1]) % 3
        first = jnp.where(outcome == 2, -1.0, outcome).astype(jnp.float32)
        played = state + 1
        return JaxStep(
            played,
            jnp.ones((2, 1), jnp.float32),
            jnp.stack([first, -first]),
            played >= self.rounds,
            jnp.zeros((), bool),
        )
