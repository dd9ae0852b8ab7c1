"""Hanabi, on OpenSpiel's engine. Source: Bard et al. 2020 (arXiv:1902.00506): rules, encoding, and the sizes by name."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import MASK
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.parallel_env import AlikeAgents, ParallelReset, ParallelStep
from envpool_bridge.envs.suites.multi_agent_options import TeamOptions, team_source
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import did_you_mean, options_of
from envpool_bridge.errors import UserError

_SIZES: dict[str, dict[str, int]] = {
    "Hanabi-Full": {},
    "Hanabi-Small": {
        "colors": 2,
        "ranks": 5,
        "hand_size": 2,
        "max_information_tokens": 3,
        "max_life_tokens": 1,
    },
    "Hanabi-Very-Small": {
        "colors": 1,
        "ranks": 5,
        "hand_size": 2,
        "max_information_tokens": 3,
        "max_life_tokens": 1,
    },
}


@dataclasses.dataclass(frozen=True)
class HanabiOptions(TeamOptions):
    """Options of the game.

    Attributes:
        players: 2 to 5.
    """

    players: int = 2

    def __post_init__(self) -> None:
        if not 2 <= self.players <= 5:
            raise UserError(f"option players must be 2 to 5, got {self.players}")


def hanabi_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> ParallelSource:
    """Returns the source of the players' rows.

    Args:
        env_id: "Hanabi-Full" (25 points), "Hanabi-Small" (10) or "Hanabi-Very-Small" (5).
        kwargs: fields of HanabiOptions.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.

    Raises:
        UserError: If the game or an option is unknown, or the package is missing.
    """
    validate_installed("pyspiel", "hanabi")
    if env_id not in _SIZES:
        hint = did_you_mean(env_id, _SIZES, 1, "; ")
        raise UserError(f"unknown environment {env_id!r} of suite 'hanabi': expected one of {', '.join(_SIZES)}{hint}")
    options = options_of(HanabiOptions, "hanabi", env_id, kwargs)
    make_env = partial(Hanabi, {"players": options.players, **_SIZES[env_id]})
    return team_source(make_env, env_id, options, strict)


class Hanabi(AlikeAgents):
    """Hanabi as a parallel environment, one move in each step. Implements `ParallelEnv`.

    Every player observes {"observation": [D] float32, "action_mask": [A]}. The observation is the engine's encoding in
    zeros and ones (658 in the full game for two). Actions are discards, plays and hints in the engine's numbering. Players
    not to move have only action 0, which is ignored. All players get the same reward: 1 for each card played successfully,
    and minus the present score when the last life is lost. The return is therefore the score.

    Args:
        parameters: Parameters of OpenSpiel's "hanabi".

    Attributes:
        possible_agents: "player_0", "player_1", ...
        agents: all of them until the game is over.
    """

    def __init__(self, parameters: dict[str, int]) -> None:
        import pyspiel

        self._game = pyspiel.load_game("hanabi", parameters)
        self.possible_agents = [f"player_{number}" for number in range(self._game.num_players())]
        self.agents: list[str] = []
        (size,) = self._game.observation_tensor_shape()
        actions = self._game.num_distinct_actions()
        seen = spaces.Box(0.0, 1.0, (size,), np.float32)
        self._observation_space = spaces.Dict({"observation": seen, MASK: spaces.MultiBinary(actions)})
        self._action_space = spaces.Discrete(actions)
        self.state_space = spaces.Box(0.0, 1.0, (size * len(self.possible_agents),), np.float32)
        self._rng = np.random.default_rng()
        self._play: Any = None
        self._shown: list[np.ndarray] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        """Deals; with a seed, the same cards each time."""
        del options
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._play = self._game.new_initial_state()
        self._deal()
        self.agents = list(self.possible_agents)
        return self._observations(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Applies the move of the player to move, and draws a card."""
        play = self._play
        play.apply_action(int(actions[self.possible_agents[play.current_player()]]))
        rewards = play.rewards()  # before the card is drawn, because a chance move has rewards of its own
        self._deal()
        names, over = list(self.agents), bool(play.is_terminal())
        if over:
            self.agents = []
        return (
            self._observations(),
            dict(zip(names, rewards, strict=True)),
            dict.fromkeys(names, over),
            dict.fromkeys(names, False),
            {name: {} for name in names},
        )

    def state(self) -> np.ndarray:
        """Returns all players' observations, [players * D], the first player's first: every card but those in the deck."""
        return np.concatenate(self._shown)

    def close(self) -> None:
        self._play = None

    def _deal(self) -> None:
        while self._play.is_chance_node():
            cards, chances = zip(*self._play.chance_outcomes(), strict=True)
            self._play.apply_action(int(self._rng.choice(cards, p=chances)))

    def _observations(self) -> dict[str, Any]:
        play = self._play
        mover = -1 if play.is_terminal() else play.current_player()
        self._shown = [np.asarray(play.observation_tensor(player), np.float32) for player in self._players()]
        return {
            self.possible_agents[player]: {"observation": self._shown[player], MASK: self._legal(player == mover)}
            for player in self._players()
        }

    def _players(self) -> range:
        return range(len(self.possible_agents))

    def _legal(self, to_move: bool) -> np.ndarray:
        legal = np.zeros(self._action_space.n, np.int8)
        legal[self._play.legal_actions() if to_move else 0] = 1
        return legal
