"""PoolVecEnv: the pool as a stable-baselines3 `VecEnv`, in place of SubprocVecEnv."""

import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, cast

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env.base_vec_env import (  # pyright: ignore[reportMissingImports]
    VecEnv,
    VecEnvIndices,
    VecEnvStepReturn,
)

from envpool_bridge.envs.env_functions import call_attribute, has_wrapper
from envpool_bridge.errors import UserError
from envpool_bridge.vector_env import PoolVectorEnv
from envpool_bridge.vector_env.arguments import EnvFn
from envpool_bridge.vector_env.calls import spread_seeds
from envpool_bridge.vector_env.results import Report, info_of, split


class PoolVecEnv(VecEnv):
    """Environments in worker processes, in place of SubprocVecEnv.

    Pass it to `make_vec_env` as `vec_env_cls`, or make it from functions. Episodes end as in stable-baselines3: the step
    that ends one returns the first observation of the next, and `info["terminal_observation"]`.

    Args:
        env_fns: one function for each environment, or one function for all.
        num_envs: number of environments of one function.
        start_method: accepted for SubprocVecEnv's callers; workers always come from a fork server of the pool.
        **options: further arguments of PoolVectorEnv: `num_workers`, `timeout_seconds`, ...
    """

    def __init__(
        self,
        env_fns: EnvFn | Iterable[EnvFn],
        num_envs: int | None = None,
        start_method: str | None = None,
        **options: Any,
    ) -> None:
        del start_method
        self.pool = _PoolOfRowInfos(env_fns, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)
        super().__init__(self.pool.num_envs, self.pool.single_observation_space, self.pool.single_action_space)

    def reset(self) -> Any:
        """Starts new episodes with the seeds and options of `seed` and `set_options`; returns the observations."""
        options = [each or None for each in self._options]  # without options, environments receive None
        observations, self.reset_infos = self.pool.reset_rows(self._seeds, options)
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: Sequence[Any] | np.ndarray) -> None:
        """Sends actions, one for each environment.

        Raises:
            UserError: actions that are not in the structure of the space.
        """
        try:
            batched = _batch(self.action_space, actions)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            expected = f"a list of one action of {self.action_space} for each environment"
            raise UserError(f"expected {expected}, got {type(actions).__name__}: {error}") from error
        self.pool.step_async(batched)

    def step_wait(self) -> VecEnvStepReturn:
        """Returns observations, rewards (float32), dones and infos of the started step."""
        observations, rewards, terminations, truncations, row_infos = self.pool.step_wait()
        infos: list[dict[str, Any]] = cast("Any", row_infos)
        dones = terminations | truncations
        for row in np.flatnonzero(dones).tolist():
            first = infos[row]
            final, infos[row] = first.pop("final_obs"), first.pop("final_info", {})
            infos[row]["terminal_observation"] = final
            self.reset_infos[row] = first
        for info, is_cut in zip(infos, (truncations & ~terminations).tolist(), strict=True):
            info["TimeLimit.truncated"] = is_cut
        return observations, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Stops the workers; idempotent."""
        self.pool.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Returns an attribute of each of these environments."""
        return self._apply(methodcaller("get_wrapper_attr", attr_name), indices)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Sets an attribute of each of these environments to one value."""
        self._apply(methodcaller("set_wrapper_attr", attr_name, value), indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of each of these environments."""
        return self._apply(partial(call_attribute, method_name, method_args, method_kwargs), indices)

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Returns whether each of these environments has a wrapper of this class."""
        return self._apply(partial(has_wrapper, wrapper_class), indices)

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Returns the frame of each environment, or None where the render mode gives no array."""
        if self.render_mode != "rgb_array":
            warnings.warn(f"images need the render_mode 'rgb_array', got {self.render_mode!r}", stacklevel=2)
            return [None] * self.num_envs
        frames = self.pool.render() or ()
        return [frame if isinstance(frame, np.ndarray) else None for frame in frames]

    def _apply(self, function: Any, indices: VecEnvIndices) -> list[Any]:
        # stable-baselines3 indexes a list with them, so that -1 is the last environment
        rows = [index + self.num_envs if -self.num_envs <= index < 0 else index for index in self._get_indices(indices)]
        return list(self.pool.apply(function, rows))


def _batch(space: gymnasium.Space, actions: Any) -> Any:
    """Returns one action for each environment in the structure of the space, with a list of values a leaf."""
    if isinstance(space, spaces.Dict):
        for action in actions:
            if set(action) != set(space):
                raise ValueError(f"expected the keys {list(space)}, got {list(action)}")
        return {key: _batch(part, [action[key] for action in actions]) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        columns = zip(*actions, strict=True)
        return tuple(_batch(part, column) for part, column in zip(space, columns, strict=True))
    return actions


class _PoolOfRowInfos(PoolVectorEnv):
    """PoolVectorEnv whose infos are a list of one dict for each environment."""

    def reset_rows(
        self, seeds: Sequence[int | None], options: Sequence[dict[str, Any] | None]
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Starts new episodes, each with its own seed and options; returns observations and infos."""
        self._require_open()
        self._require_idle("reset_async")
        each = spread_seeds(seeds, self.num_envs)
        self._send_reset(each, (), tuple(map(cloudpickle.dumps, options)))
        observations, infos = self.reset_wait()
        return observations, cast("Any", infos)

    def _infos(self, lanes: Sequence[int], reports: list[Report], ends: np.ndarray) -> Any:
        infos, ended = [info_of(report) for report in reports], np.flatnonzero(ends)
        if self._shares_finals and len(ended):
            finals = self._lanes.final_observations(lanes, ended)
            for row, final in zip(ended.tolist(), split(finals), strict=True):
                infos[row]["final_obs"] = final
        return infos
