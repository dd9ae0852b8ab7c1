"""Rules of a game of two players with perfect information, as a pure function that searches call."""

import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

from agents.api import Array, Observation
from envpool_bridge.errors import UserError


class GameStep(NamedTuple):
    """Result of a move in one game.

    Attributes:
        observation: Observation of the player to move next, with the game's state as leaf "state" and the legal moves as leaf
            "action_mask".
        reward: float32 scalar, for the player who moved.
        ended: bool scalar.
    """

    observation: Observation
    reward: Array
    ended: Array


GameFn = Callable[[Observation, Array], GameStep]
"""Maps (observation, move) of one game to the result of the move; reads only the leaf "state" of the observation."""


def load_game(name: str, env_id: str) -> GameFn:
    """Returns the rules that the function at "module:name" returns for an environment.

    Raises:
        UserError: If there is no such function.
    """
    module, _, path = name.partition(":")
    try:
        make: Any = reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"game {name!r}: expected 'module:name' of a function that takes an environment's id and returns its rules: {error}"
        ) from error
    return make(env_id)
