"""EnvPool's interface over the pool, for every environment that Gymnasium can make.

`make("CartPole-v1", env_type="gymnasium", num_envs=64, batch_size=16)` replaces `envpool.make` of the same arguments.
"""

import dataclasses
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from envpool_bridge.envs.suites.registry import newest_registration
from envpool_bridge.errors import UserError
from envpool_bridge.vector_env import PoolVectorEnv

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Config:
    """Arguments of `make`, under EnvPool's names.

    Attributes:
        num_envs: number of environments.
        batch_size: number of environments whose results `recv` returns together; 0 means `num_envs`.
        num_threads: number of worker processes; 0 lets the pool decide.
        seed: environment i begins with `seed + i`.
        max_episode_steps: time limit of an episode; None means the environment's own.
    """

    num_envs: int = 1
    batch_size: int = 0
    num_threads: int = 0
    seed: int = 42
    max_episode_steps: int | None = None

    def __post_init__(self) -> None:
        size = self.batch_size or self.num_envs
        if self.num_envs < 1 or size < 1 or self.num_threads < 0 or self.num_envs % size:
            raise UserError(
                "expected num_envs of at least 1, a batch_size that divides it, and num_threads of at least 0; got "
                f"{self.num_envs}, {self.batch_size} and {self.num_threads}"
            )
        if self.num_threads and size % self.num_threads:
            raise UserError(f"num_threads must divide batch_size: got {self.num_threads} and {size}")
        object.__setattr__(self, "batch_size", size)


@dataclasses.dataclass(frozen=True)
class Spec:
    """Spaces and settings of an environment, as EnvPool's `spec`.

    Attributes:
        config: settings.
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
        env_type: must be "gymnasium".
        **settings: fields of `Config`; others are passed to `gymnasium.make`.
    """
    if env_type != "gymnasium":
        raise UserError(f"env_type must be 'gymnasium', got {env_type!r}: EnvPool itself has 'dm' and 'gym'")
    names = [field.name for field in dataclasses.fields(Config)]
    config = Config(**{name: settings.pop(name) for name in names if name in settings})
    if config.max_episode_steps is not None:
        settings["max_episode_steps"] = config.max_episode_steps
    return GymnasiumEnvPool(task_id, config, settings)


class GymnasiumEnvPool(gymnasium.Env):
    """Environments behind EnvPool's methods. A step after the end of an episode starts the next one, without reward.

    Args:
        task_id: as `make` takes it. Its registration is sent to the workers, which never run the script that registers it.
        config: settings.
        env_kwargs: further arguments of `gymnasium.make`.

    Attributes:
        observation_space: space of one environment.
        action_space: space of one environment.
    """

    def __init__(self, task_id: str, config: Config, env_kwargs: dict[str, Any]) -> None:
        self._pool = PoolVectorEnv(
            partial(gymnasium.make, newest_registration(task_id), **env_kwargs),
            config.num_envs,
            num_workers=config.num_threads or None,
            lanes_per_worker=config.num_envs // config.batch_size,
        )
        self.config = config
        self.observation_space = self._pool.single_observation_space
        self.action_space = self._pool.single_action_space
        spec = self._pool.spec
        threshold = None if spec is None else spec.reward_threshold
        self.spec: Any = Spec(config, self.observation_space, self.action_space, threshold)
        self._seed: int | None = config.seed
        self._elapsed = np.zeros(config.num_envs, np.int32)
        self._starts = np.ones(config.num_envs, np.bool_)  # rows whose next result is a reset

    def __len__(self) -> int:
        return self.config.num_envs

    @property
    def all_env_ids(self) -> np.ndarray:
        """Ids of all environments, [num_envs] int32."""
        return np.arange(self.config.num_envs, dtype=np.int32)

    @property
    def is_async(self) -> bool:
        """True if `recv` returns fewer environments than there are."""
        return self.config.batch_size < self.config.num_envs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Starts new episodes in all environments; returns their observations and infos.

        Args:
            seed: replaces `config.seed`, which only the first reset uses.
            options: must be None.

        Raises:
            UserError: results would have to be returned in batches (use `async_reset`), or there are options.
        """
        if self.is_async or options is not None:
            raise UserError("reset returns all environments and takes no options: call async_reset, then recv")
        self._seed = self._seed if seed is None else seed
        self.async_reset()
        observations, _, _, _, info = self.recv()
        return observations, info

    def async_reset(self) -> None:
        """Starts new episodes in all environments; `recv` returns their observations."""
        seed, self._seed = self._seed, None
        self._starts[:] = True
        self._pool.async_reset(seed)

    def send(self, action: Any, env_id: np.ndarray | None = None) -> None:
        """Sends actions to the environments `env_id`, all by default."""
        self._pool.send(action, env_id)

    def recv(self) -> Step:
        """Returns the next `batch_size` results: observations, rewards, terminations, truncations and infos.

        `info["env_id"]`, [batch_size] int32, names their environments; `info["elapsed_step"]`, [batch_size] int32, counts
        the steps of their episodes.
        """
        observations, rewards, terminations, truncations, infos = self._pool.recv()
        rows = infos["env_id"]
        self._elapsed[rows] = np.where(self._starts[rows], 0, self._elapsed[rows] + 1)
        self._starts[rows] = terminations | truncations
        infos = {**infos, "env_id": rows.astype(np.int32), "elapsed_step": self._elapsed[rows]}
        return observations, rewards.astype(np.float32), terminations, truncations, infos

    def step(self, action: Any, env_id: np.ndarray | None = None) -> Step:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Sends actions and returns the next results, which are those of other environments if `is_async`."""
        self.send(action, env_id)
        return self.recv()

    def seed(self, seed: int) -> None:
        """Sets the seed of the next reset."""
        self._seed = seed

    def close(self) -> None:
        """Stops the workers; idempotent."""
        self._pool.close()
