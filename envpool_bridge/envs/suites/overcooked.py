"""Overcooked. Source: Carroll et al. 2019 (arXiv:1910.05789): two cooks, 400 steps, 20 points for a soup."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.multi_agent_env import ParallelSource, TeamReward
from envpool_bridge.envs.parallel_env import AlikeAgents, ParallelReset, ParallelStep
from envpool_bridge.envs.suites.multi_agent_options import TeamOptions, team_source
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import did_you_mean, options_of, validate_at_least
from envpool_bridge.errors import UserError

_COOKS = ("cook_0", "cook_1")
_CHANNELS = 26


@dataclasses.dataclass(frozen=True)
class OvercookedOptions(TeamOptions):
    """Options of a kitchen.

    Attributes:
        team_reward: Team reward, as in TeamOptions; by default all cooks are rewarded for every soup.
        horizon: env steps, after which an episode is truncated.
        shaped_reward: weight of the rewards for steps towards a soup: 3 for an ingredient in a pot, 3 for a dish in
            time, 5 for taking a soup. Only for learning: evaluation counts soups.
        random_start: whether cooks start anywhere instead of at the layout's positions.
    """

    team_reward: TeamReward = "sum"
    horizon: int = 400
    shaped_reward: float = 0.0
    random_start: bool = False

    def __post_init__(self) -> None:
        validate_at_least(1, horizon=self.horizon)


def overcooked_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> ParallelSource:
    """Returns the source of the cooks of a kitchen.

    Args:
        env_id: name of a layout for two: "cramped_room", "asymmetric_advantages", "coordination_ring",
            "forced_coordination", "counter_circuit_o_1order", ...
        kwargs: fields of OvercookedOptions.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.

    Raises:
        UserError: If the layout or an option is unknown, or the package is missing.
    """
    validate_installed("overcooked", "overcooked")
    from overcooked.static import LAYOUTS_DIR  # pyright: ignore[reportMissingImports]  optional

    known = sorted(path.stem for path in Path(LAYOUTS_DIR).glob("*.layout"))
    if env_id not in known:
        hint = did_you_mean(env_id, known) or f"expected one of {', '.join(known)}"
        raise UserError(f"unknown layout {env_id!r} of suite 'overcooked': {hint}")
    options = options_of(OvercookedOptions, "overcooked", env_id, kwargs)
    evaluation_env = partial(Overcooked, env_id, dataclasses.replace(options, shaped_reward=0.0))
    return team_source(partial(Overcooked, env_id, options), env_id, options, strict, evaluation_env)


class Overcooked(AlikeAgents):
    """A kitchen as a parallel environment. Implements `ParallelEnv`.

    A cook observes [W, H, 26] float32, the package's "lossless" encoding of the whole kitchen with itself first. It
    goes north, south, east or west, stays, or interacts (actions 0 to 5). Its own reward is that of the soups it has
    served.

    Args:
        layout: name of the layout.
        options: Options of the kitchen.

    Attributes:
        possible_agents: "cook_0", "cook_1".
        agents: both until the time is up.

    Raises:
        UserError: If the layout is not for two cooks.
    """

    def __init__(self, layout: str, options: OvercookedOptions) -> None:
        from overcooked.mdp.actions import Action  # pyright: ignore[reportMissingImports]
        from overcooked.mdp.overcooked_mdp import OvercookedGridworld, OvercookedState, Recipe  # pyright: ignore[reportMissingImports]

        self._recipe, self._make_state = Recipe, OvercookedState.from_player_positions
        self._moves = list(Action.INDEX_TO_ACTION)
        self._options = options
        self._kitchen = OvercookedGridworld.from_layout_name(layout)
        if self._kitchen.num_players != len(_COOKS):
            raise UserError(
                f"layout {layout!r} is for {self._kitchen.num_players} cooks: expected 2, as in the encoding"
            )
        self.possible_agents: list[str] = list(_COOKS)
        self.agents: list[str] = []
        shape = (*self._kitchen.shape, _CHANNELS)
        self._observation_space = spaces.Box(0.0, np.inf, shape, np.float32)
        self._action_space = spaces.Discrete(len(self._moves))
        self.state_space = self._observation_space
        self._rng = np.random.default_rng()
        self._now: Any = None
        self._shown: list[np.ndarray] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        """Resets the kitchen; the seed matters only with random starts."""
        del options
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._use_recipes()
        self._now = self._start()
        self.agents = list(self.possible_agents)
        return self._observations(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        self._use_recipes()
        chosen = [self._moves[int(actions[name])] for name in self.possible_agents]
        self._now, events = self._kitchen.get_state_transition(self._now, chosen)
        names, weight = self.possible_agents, self._options.shaped_reward
        served, shaped = events["sparse_reward_by_agent"], events["shaped_reward_by_agent"]
        rewards = {name: float(served[k] + weight * shaped[k]) for k, name in enumerate(names)}
        over = bool(self._now.timestep >= self._options.horizon)
        if over:
            self.agents = []
        infos = {name: {"soups": float(served[k])} for k, name in enumerate(names)}
        return self._observations(), rewards, dict.fromkeys(names, False), dict.fromkeys(names, over), infos

    def state(self) -> np.ndarray:
        """Returns the first cook's observation, the whole kitchen, [W, H, 26]."""
        return self._shown[0]

    def close(self) -> None: ...

    def _start(self) -> Any:
        if not self._options.random_start:
            return self._kitchen.get_standard_start_state()
        places = self._kitchen.get_valid_joint_player_positions()
        kitchen = self._kitchen
        return self._make_state(
            places[self._rng.integers(len(places))],
            bonus_orders=kitchen.start_bonus_orders,
            all_orders=kitchen.start_all_orders,
        )

    def _use_recipes(self) -> None:
        """Sets this kitchen's recipes: the package keeps the recipes of one kitchen for the whole process."""
        if self._recipe._conf is not self._kitchen.recipe_config:
            self._recipe.configure(self._kitchen.recipe_config)

    def _observations(self) -> dict[str, Any]:
        encoded = self._kitchen.lossless_state_encoding(self._now, horizon=self._options.horizon)
        self._shown = [np.asarray(seen, np.float32) for seen in encoded]
        return dict(zip(self.possible_agents, self._shown, strict=True))
