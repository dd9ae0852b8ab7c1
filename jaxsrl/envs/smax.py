"""SMAX, JaxMARL's battles in the style of StarCraft's SMAC, stepped on the CPU as parallel environments.

Source: Rutherford et al. 2024 (arXiv:2311.10090); the tasks are those of Samvelyan et al. 2019 (SMAC) and Ellis et al. 2023
(SMACv2), played by the engine's own rules.
"""

import dataclasses
import io
import json
import sys
from functools import lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.io.spaces import MASK
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.parallel_env import AlikeAgents, ParallelReset, ParallelStep
from envpool_bridge.envs.suites.multi_agent_options import TeamOptions, team_source
from envpool_bridge.envs.suites.options import options_of, validate_at_least
from jaxsrl.envs.optional_imports import import_package, validate_env_id
from jaxsrl.machine.split_cpu import host_device

SUITE = "smax"


@dataclasses.dataclass(frozen=True)
class SmaxOptions(TeamOptions):
    """Options of a battle.

    Attributes:
        max_steps: env steps after which a battle is truncated.
        observation: "units" (one block for every unit, zeros for those out of sight) or "sectors" (the nearest units in each
            of 32 directions).
        enemy_shoots: whether the enemy, which follows rules, shoots.
        enemy_attack: Unit that the enemy attacks first.
        see_enemy_actions: whether units observe the last actions of the enemies in sight.
        walls_cause_death: whether units that leave the map die.
        won_battle_bonus: reward of every unit for a victory, in addition to up to 1 in total for the enemy's health.
    """

    max_steps: int = 100
    observation: Literal["units", "sectors"] = "units"
    enemy_shoots: bool = True
    enemy_attack: Literal["closest", "random"] = "closest"
    see_enemy_actions: bool = True
    walls_cause_death: bool = True
    won_battle_bonus: float = 1.0

    def __post_init__(self) -> None:
        validate_at_least(1, max_steps=self.max_steps)


def smax_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> ParallelSource:
    """Returns a source of rows of the allied units of a battle.

    A worker process imports jax, as for every JAX environment (see JaxSource), and computes on the CPU.

    Args:
        env_id: id of a scenario: "3m", "2s3z", "5m_vs_6m", "smacv2_5_units", ...
        kwargs: fields of SmaxOptions.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.

    Raises:
        UserError: unknown scenario, unknown or bad options, or the package is missing.
    """
    validate_env_id(env_id, SUITE, _package().smax_env.MAP_NAME_TO_SCENARIO)
    options = options_of(SmaxOptions, SUITE, env_id, kwargs)
    return team_source(partial(SmaxBattle, env_id, options), env_id, options, strict)


class SmaxBattle(AlikeAgents):
    """Battle of the allied units against an enemy that follows rules. Implements the protocol `ParallelEnv`.

    A unit observes {"observation": [D] float32, "action_mask": [A]} and moves (0 to 3), stops (4) or shoots an enemy. A
    fallen unit stays: it observes zeros, may only stop, and shares the team's reward to the end, as in SMAC. The battle is
    terminated when one side has fallen, and truncated at the time limit. Battles of one scenario and options share their
    compiled programs.

    Attributes:
        possible_agents: "ally_0", "ally_1", ...
        agents: all of them until the battle is over.
        state_space: space of the world's state.
    """

    def __init__(self, scenario: str, options: SmaxOptions) -> None:
        self._battle = _load(scenario, json.dumps(dataclasses.asdict(options), sort_keys=True))
        battle = self._battle
        self.possible_agents: list[str] = list(battle.agents)
        self.agents: list[str] = []
        actions = int(battle.num_ally_actions)
        seen = spaces.Box(-np.inf, np.inf, (int(battle.obs_size),), np.float32)
        self._observation_space = spaces.Dict({"observation": seen, MASK: spaces.MultiBinary(actions)})
        self._action_space = spaces.Discrete(actions)
        self.state_space = spaces.Box(-np.inf, np.inf, (int(battle.state_size),), np.float32)
        self._device = host_device()
        self._key: Any = None
        self._now: Any = None
        self._world = np.zeros(0, np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> ParallelReset:
        """Starts a battle; a seed makes it reproducible."""
        del options
        if seed is not None or self._key is None:
            number = int(np.random.SeedSequence(seed).generate_state(1)[0])
            # Committed to the device, so that computations with it run there.
            self._key = jax.device_put(jax.random.key(number), self._device)
        self._now, self._key, seen = _reset(self._battle, self._key)
        self.agents = list(self.possible_agents)
        return self._observations(jax.device_get(seen)), {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Steps all units once."""
        names = self.possible_agents
        given = np.array([actions[name] for name in names], np.int32)
        self._now, self._key, seen, reward, ends = _step(self._battle, self._key, self._now, given)
        seen, reward, ends = jax.device_get((seen, reward, ends))
        terminated, over, won = (bool(end) for end in ends)
        if over:
            self.agents = []
        return (
            self._observations(seen),
            {name: float(reward[k]) for k, name in enumerate(names)},
            dict.fromkeys(names, terminated),
            dict.fromkeys(names, over and not terminated),
            {name: {"won": float(won)} for name in names},
        )

    def state(self) -> np.ndarray:
        """Returns the state of the world."""
        return self._world

    def close(self) -> None:
        """Drops the state."""
        self._now = None

    def _observations(self, seen: tuple[np.ndarray, np.ndarray, np.ndarray]) -> dict[str, Any]:
        observed, legal, self._world = seen
        return {
            name: {"observation": observed[k], MASK: legal[k].astype(np.int8)}
            for k, name in enumerate(self.possible_agents)
        }


def _package() -> Any:
    # It prints its imports to the process's original streams: one of its modules undoes any redirection.
    original = sys.stdout, sys.stderr, sys.__stdout__
    sys.stdout = sys.__stdout__ = io.StringIO()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return import_package("jaxmarl.environments.smax", SUITE)
    finally:
        sys.stdout, sys.stderr, sys.__stdout__ = original  # pyright: ignore[reportAttributeAccessIssue]


@lru_cache(maxsize=8)
def _load(scenario: str, options: str) -> Any:
    smax, chosen = _package(), SmaxOptions(**json.loads(options))
    return smax.HeuristicEnemySMAX(
        scenario=smax.map_name_to_scenario(scenario),
        enemy_shoots=chosen.enemy_shoots,
        attack_mode=chosen.enemy_attack,
        see_enemy_actions=chosen.see_enemy_actions,
        walls_cause_death=chosen.walls_cause_death,
        won_battle_bonus=chosen.won_battle_bonus,
        max_steps=chosen.max_steps,
        observation_type={"units": "unit_list", "sectors": "conic"}[chosen.observation],
    )


@partial(jax.jit, static_argnums=0)
def _reset(battle: Any, key: Any) -> tuple[Any, Any, Any]:
    key, own = jax.random.split(key)
    shown, state = battle.reset(own)
    return state, key, _observe(battle, shown, state)


@partial(jax.jit, static_argnums=0)
def _step(battle: Any, key: Any, state: Any, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Returns (state, key, observations, [N] rewards, (one side has fallen, the battle is over, the allies won))."""
    key, own = jax.random.split(key)
    given = {name: actions[k] for k, name in enumerate(battle.agents)}
    shown, state, rewards, dones, _ = battle.step_env(own, state, given)
    alive = state.state.unit_alive
    allies, enemies = alive[: battle.num_allies].any(), alive[battle.num_allies :].any()
    reward = jnp.stack([rewards[name] for name in battle.agents])
    ends = (~allies | ~enemies, dones["__all__"], allies & ~enemies)
    return state, key, _observe(battle, shown, state), reward, ends


def _observe(battle: Any, shown: Any, state: Any) -> tuple[Any, Any, Any]:
    legal = battle.get_avail_actions(state)
    return (
        jnp.stack([shown[name] for name in battle.agents]),
        jnp.stack([legal[name] for name in battle.agents]),
        shown["world_state"],
    )
