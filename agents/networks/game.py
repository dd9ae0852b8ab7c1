"""Policy and value of a position of a board game.

Source: Silver et al. 2018, "A general reinforcement learning algorithm that masters chess, shogi, and Go through self-play". The
torso is that of `NetworkConfig`.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.distributions import mask_logits
from agents.networks.observation_inputs import make_inputs, validate_torso
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec

STATE, MASK = "state", "action_mask"


class GameNetwork(NamedTuple):
    """Bound to a game's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        evaluate: Maps (params, observation [..., *leaf]) to masked logits [..., A] of the moves and the value [...] in [-1, 1] for
            the player to move.
        num_actions: A.
    """

    init: Callable[[Array], Params]
    evaluate: Callable[[Params, Observation], tuple[Array, Array]]
    num_actions: int


def make_game_network(config: NetworkConfig, spec: EnvSpec) -> GameNetwork:
    """Returns a torso over the board with a policy head and a value head. The game's state is no input.

    Raises:
        UserError: If the rows are not those of a game, the network is recurrent, or it does not fit the board.
    """
    validate_read(config, "AlphaZero")
    if config.core != "none":
        raise UserError(f"a position has all that a network needs: expected network.core 'none', got {config.core!r}")
    observation, action = spec.observation, spec.action
    if not isinstance(observation, dict) or STATE not in observation or spec.action_mask != (MASK,):
        raise UserError(
            f"{spec.env_id}: AlphaZero searches with the rules of a game: expected observations with 'state' and 'action_mask'; "
            f"use --env.suite pgx --env.kwargs.with-state true"
        )
    assert isinstance(action, DiscreteSpec)
    # The search knows whose move it is.
    inputs = make_inputs(dataclasses.replace(spec, players=1), config.torso, without=(STATE,))
    validate_torso(spec, inputs)
    heads = {"policy": HeadSize(action.num_values, 0.01), "value": HeadSize(1, 0.01)}
    branch = make_branch(config, inputs, heads)

    def evaluate(params: Params, observation: Observation) -> tuple[Array, Array]:
        outputs = branch.outputs(params, observation)
        return mask_logits(outputs["policy"], observation[MASK]), jnp.tanh(outputs["value"][..., 0])

    return GameNetwork(branch.init, evaluate, action.num_values)
