"""EnvPool's interface over the pool, for every environment that Gymnasium can make.

`make("CartPole-v1", env_type="gymnasium", num_envs=64, batch_size=16)` replaces `envpool.make` of the same arguments.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from envpool_bridge.envs.suites.registry import newest_registration
from envpool_bridge.errors import UserError
from envpool_bridge.spec.tree import take
from envpool_bridge.vector_env import PoolVectorEnv
from envpool_bridge.vector_env.calls import split_mask
from envpool_bridge.vector_env.results import select_infos

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Config:
    """Arguments of `make`, under EnvPool's names.

    Attributes:
        num_envs: number of environments.
        batch_size: number of environments whose results `recv` returns together; 0 means `num_envs`.
        num_threads: largest number of worker processes; 0 lets the pool decide.
        seed: environment i begins with `seed + i`, or with item i of a list.
        max_episode_steps: time limit of an episode; None means the environment's own.
    """

    num_envs: int = 1
    batch_size: int = 0
    num_threads: int = 0
    seed: int | Sequence[int] = 42
    max_episode_steps: int | None = None

    def __post_init__(self) -> None:
        size = self.batch_size or self.num_envs
        if self.num_envs < 1 or size < 1 or self.num_threads < 0 or self.num_envs % size:
            raise UserError(
                "expected num_envs of at least 1, a batch_size that divides it, and num_threads of at least 0; got "
                f"{self.num_envs}, {self.batch_size} and {self.num_threads}"
            )
        object.__setattr__(self, "batch_size", size)

    @property
    def num_workers(self) -> int | None:
        """Number of worker processes: the largest up to `num_threads` that divides a batch; None for the pool's choice."""
        fitting = [count for count in range(1, self.num_threads + 1) if self.batch_size % count == 0]
        return max(fitting, default=None)


@dataclasses.dataclass(frozen=True)
class Spec:
    """Spaces and settings of an environment, as EnvPool's `spec`.

    Attributes:
        config: settings; `max_episode_steps` is that of the environment.
        observation_space: space of one environment.
        action_space: space of one environment.
        reward_threshold: return at which the environment counts as solved, if it declares one.
    """

    config: Config
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_threshold: float | None


def make(task_id: str, env_type: str = "gymnasium", **settings: Any) -> "GymnasiumEnvPool":
    """Makes environments with EnvPool's interface.

    Args:
        task_id: an id or "module:id" of Gymnasium's registry.
        env_type: "gymnasium", or "gym" for the same.
        **settings: fields of `Config`; others are passed to `gymnasium.make`.
    """
    if env_type not in ("gymnasium", "gym"):
        raise UserError(f"env_type must be 'gymnasium', got {env_type!r}: EnvPool itself has 'dm'")
    names = [field.name for field in dataclasses.fields(Config)]
    config = Config(**{name: settings.pop(name) for name in names if name in settings})
    if config.max_episode_steps is not None:
        settings["max_episode_steps"] = config.max_episode_steps
    pool = PoolVectorEnv(
        partial(gymnasium.make, newest_registration(task_id), **settings),
        config.num_envs,
        num_workers=config.num_workers,
        lanes_per_worker=config.num_envs // config.batch_size,
    )
    return GymnasiumEnvPool(pool, config)


def make_gymnasium(task_id: str, **settings: Any) -> "GymnasiumEnvPool":
    """Makes environments; see `make`."""
    return make(task_id, **settings)


def make_spec(task_id: str, **settings: Any) -> Spec:
    """Returns the spec of `make` with the same arguments."""
    env = make(task_id, **settings)
    env.close()
    return env.spec


def list_all_envs() -> list[str]:
    """Returns the ids of Gymnasium's registry."""
    return sorted(gymnasium.registry)


make_gym = make_gymnasium


class GymnasiumEnvPool(VectorEnv, gymnasium.Env):  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
    """Environments behind EnvPool's methods. A step after the end of an episode starts the next one, without reward.

    Args:
        pool: environments, in one lane for each batch.
        config: settings.

    Attributes:
        config: settings by name.
        observation_space: space of one environment, as EnvPool's.
        action_space: space of one environment.
        single_observation_space: the same.
        single_action_space: the same.
    """

    is_vector_env = True

    def __init__(self, pool: PoolVectorEnv, config: Config) -> None:
        self._pool = pool
        limit = None if pool.spec is None else pool.spec.max_episode_steps
        threshold = None if pool.spec is None else pool.spec.reward_threshold
        config = dataclasses.replace(config, max_episode_steps=limit)
        self.config = dataclasses.asdict(config)
        self.observation_space = self.single_observation_space = pool.single_observation_space
        self.action_space = self.single_action_space = pool.single_action_space
        self.metadata, self.render_mode = pool.metadata, pool.render_mode
        self.spec: Any = Spec(config, self.observation_space, self.action_space, threshold)
        self._seed: int | Sequence[int] | None = config.seed
        self._was_reset = False
        self._elapsed = np.zeros(config.num_envs, np.int32)
        self._starts = np.ones(config.num_envs, np.bool_)  # rows whose next result is a reset

    def __len__(self) -> int:
        return self.num_envs

    @property
    def num_envs(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of environments."""
        return self.config["num_envs"]

    @property
    def all_env_ids(self) -> np.ndarray:
        """Ids of all environments, [num_envs] int32."""
        return np.arange(self.num_envs, dtype=np.int32)

    @property
    def is_async(self) -> bool:
        """True if `recv` returns fewer environments than there are."""
        return self.config["batch_size"] < self.num_envs

    def reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        env_id: np.ndarray | None = None,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes; returns their observations and infos, if `is_async` those of the first batch.

        Args:
            env_id: ids of the environments to reset; all by default.
            seed: replaces `config["seed"]`, which only the first reset uses.
            options: passed to the environments; the item "reset_mask", [num_envs] bool, selects those to reset.

        Raises:
            UserError: some environments, or options, if `is_async`.
        """
        self._seed = self._seed if seed is None else seed
        if self.is_async:
            if env_id is not None or options is not None:
                raise UserError(
                    "reset of some environments, or with options, needs batch_size num_envs: use async_reset"
                )
            self.async_reset()
            observations, _, _, _, info = self.recv()
            return observations, info
        if env_id is not None:
            if "reset_mask" in (options or {}) or not np.isin(env_id, self.all_env_ids).all():
                raise UserError(
                    f"env_id: expected ids from 0 to {self.num_envs - 1}, without a reset_mask: got {env_id}"
                )
            options = {**(options or {}), "reset_mask": np.isin(self.all_env_ids, env_id)}
        mask, others = split_mask(options, self.num_envs)
        if not self._was_reset:
            options = others  # environments without an episode start theirs, too
        seed, self._seed = self._seed, None  # pyright: ignore[reportAssignmentType]
        observations, infos = self._pool.reset(seed=seed, options=options)
        self._was_reset, rows = True, np.flatnonzero(mask or (True,) * self.num_envs)
        self._starts[rows] = True
        return take(observations, rows), self._info(select_infos(infos, rows), rows, np.zeros(len(rows), np.bool_))

    def async_reset(self) -> None:
        """Starts new episodes in all environments; `recv` returns their observations."""
        seed, self._seed = self._seed, None
        self._was_reset = True
        self._starts[:] = True
        self._pool.async_reset(seed)

    def send(self, action: Any, env_id: np.ndarray | None = None) -> None:
        """Sends actions; the first ones start the episodes of all environments instead.

        Args:
            action: one for each environment, or a dict with the items "action" and "env_id".
            env_id: ids of whole batches, as `recv` returned them; all by default.

        Raises:
            UserError: actions or ids that do not fit, such as a part of a batch.
        """
        if isinstance(action, dict) and "env_id" in action:
            action, env_id = action["action"], action["env_id"]
        if self._was_reset:
            self._pool.send(self._whole(action), env_id)
        elif env_id is None or len(env_id) == self.num_envs:
            self.async_reset()
        else:
            raise UserError(f"the first actions start all {self.num_envs} environments: call async_reset, then recv")

    def _whole(self, action: Any) -> Any:
        """Returns discrete actions that are whole floats as integers; others as they are."""
        array = np.asarray(action) if isinstance(self.action_space, gymnasium.spaces.Discrete) else None
        if array is None or array.dtype.kind != "f" or (array != np.trunc(array)).any():
            return action
        return array.astype(np.int64)

    def recv(self) -> Step:
        """Returns the next `batch_size` results: observations, rewards, terminations, truncations and infos.

        `info["env_id"]`, [batch_size] int32, names their environments; `info["elapsed_step"]`, [batch_size] int32, counts
        the steps of their episodes.
        """
        observations, rewards, terminations, truncations, infos = self._pool.recv()
        info = self._info(infos, infos["env_id"], terminations | truncations)
        return observations, rewards.astype(np.float32), terminations, truncations, info

    def _info(self, infos: dict[str, Any], rows: np.ndarray, ends: np.ndarray) -> dict[str, Any]:
        """Counts the steps of these rows' results, and returns infos with EnvPool's items."""
        self._elapsed[rows] = np.where(self._starts[rows], 0, self._elapsed[rows] + 1)
        self._starts[rows] = ends
        env_id = rows.astype(np.int32)
        own = {"env_id": env_id, "players": {"env_id": env_id}, "elapsed_step": self._elapsed[rows]}
        return {name: info for name, info in infos.items() if str(name).removeprefix("_") not in own} | own

    def step(self, action: Any, env_id: np.ndarray | None = None) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Sends actions and returns the next results, which are those of other environments if `is_async`."""
        self.send(action, env_id)
        return self.recv()

    def render(self, env_ids: int | Sequence[int] | np.ndarray = 0) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns frames of some environments, [N, height, width, 3] uint8, by default of the first."""
        if self.render_mode != "rgb_array":
            raise UserError(f"render needs render_mode='rgb_array': got {self.render_mode!r}")
        return np.stack(self._pool.apply(_render, np.atleast_1d(env_ids)))

    def seed(self, seed: Any = None) -> None:
        """Does nothing: `make` and `reset` take the seed."""
        warnings.warn(f"seed({seed}) has no effect: pass seed to make or reset", stacklevel=2)

    def xla(self) -> None:
        """Raises UserError: workers are processes."""
        raise UserError("xla is EnvPool's own: use send and recv")

    def close_extras(self, **kwargs: Any) -> None:
        """Stops the workers; called by `close`, which takes the arguments of PoolVectorEnv's."""
        self._pool.close(**kwargs)


def _render(env: gymnasium.Env) -> Any:
    return env.render()
