"""The pool as a `gymnasium.vector.VectorEnv`: a drop-in for AsyncVectorEnv, with EnvPool's `send` and `recv`."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import GymnasiumReset
from envpool_bridge.errors import UserError, WaitTimeoutError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.spec.encoding import concatenated, restored, store
from envpool_bridge.spec.tree import Tree, map_leaves, take

_WINDOW = 16  # steps in a slot; an observation is copied from one slot to the next this often
_TIMEOUT_SECONDS = 60.0


class PoolVectorEnv(VectorEnv):
    """Environments in worker processes behind Gymnasium's vector interface.

    Episodes reset in NEXT_STEP mode, Gymnasium's default. Use it only from the thread that made it. The constructor
    makes one environment to inspect its spaces; the workers start at the first reset.

    Args:
        make_env: makes one environment; any callable that cloudpickle can send to workers.
        num_envs: number of environments.
        num_workers: number of processes. If None, the number of cores, or the largest smaller number that divides
            `num_envs`.
        lanes_per_worker: 2 or more make `send` and `recv` overlap; `step` always waits for all lanes.
        timeout_seconds: time limit of a step or a reset. The first reset starts the workers, and its limit is
            `SupervisorOptions.start_timeout_seconds`.

    Raises:
        UserError: sizes that do not divide, or an environment that cannot be sent to workers.
    """

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env],
        num_envs: int,
        *,
        num_workers: int | None = None,
        lanes_per_worker: int = 1,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        probe = make_env()
        self.spec = probe.spec
        self.single_observation_space, self.single_action_space = probe.observation_space, probe.action_space
        self.render_mode = probe.render_mode
        self.metadata = {**probe.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        probe.close()
        self.num_envs = num_envs
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        shape = _shape(num_envs, num_workers, lanes_per_worker)
        self._timeout = timeout_seconds
        self._source = GymnasiumSource(make_env, clip_actions=False, keep_64_bits=True)
        self._pool = EnvPool(self._source, shape, PoolOptions(keep_infos=True, verify_every=1))
        self._lanes = range(shape.num_lanes)
        self._lane_rows = [shape.lane_rows(lane) for lane in self._lanes]
        self._started = self._stepping = False
        self._fresh: set[int] = set()  # lanes whose newest observation `recv` has not returned

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes in all environments; an int seeds environment i with `seed + i`."""
        requests = self._requests(seed, options)
        timeout = self._timeout
        if not self._started:
            self._started = True
            timeout = SupervisorOptions().start_timeout_seconds
            self._pool.start(requests)
        else:
            self._require_lanes()
            for lane in self._lanes:
                parts = self._pool.shape.parts_of_lane(lane)
                self._pool.post_reset(lane, [requests[part] for part in parts])
                self._release_slots(lane)
        self._stepping = False
        self._require_lanes(timeout)
        self._fresh = set()
        return self._observations(), self._infos()

    def step_async(self, actions: Any) -> None:
        """Sends actions; `step_wait` returns the results."""
        self._require_started()
        actions = self._as_arrays(actions)
        for lane, rows in zip(self._lanes, self._lane_rows, strict=True):
            self._send_lane(lane, take(actions, rows))
        self._stepping = True

    def step_wait(self, timeout: float | None = None) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Returns observations, rewards (float64), terminations, truncations and infos of the started step.

        Raises:
            WaitTimeoutError: the environments took longer than `timeout` seconds; the step continues.
        """
        if not self._stepping:
            raise UserError("step_wait needs a step_async before it")
        self._require_lanes(timeout)
        self._stepping = False
        return (*self._results(list(self._lanes)), self._infos())

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps every environment once."""
        self.step_async(actions)
        return self.step_wait()

    def send(self, actions: Any, env_id: np.ndarray | None = None) -> None:
        """Sends actions to some environments, like EnvPool's send.

        Args:
            actions: one for each entry of `env_id`.
            env_id: whole lanes, as `recv` returned them in `info["env_id"]`; None means all.
        """
        self._require_started()
        actions = self._as_arrays(actions)
        env_id = np.arange(self.num_envs) if env_id is None else np.asarray(env_id)
        lanes = {int(row) // self._pool.shape.rows_per_lane for row in env_id}
        if len(env_id) != len(lanes) * self._pool.shape.rows_per_lane:
            raise UserError(
                f"send needs whole lanes of {self._pool.shape.rows_per_lane} environments, as recv gives them"
            )
        order = np.argsort(env_id)
        actions, env_id = take(actions, order), env_id[order]
        for lane in sorted(lanes):
            rows = self._lane_rows[lane]
            self._send_lane(lane, take(actions, (env_id >= rows.start) & (env_id < rows.stop)))
            self._fresh.add(lane)

    def recv(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Returns the results of the lanes that finish first, with their rows in `info["env_id"]`, like EnvPool's recv.

        Raises:
            WaitTimeoutError: no lane finished in time.
        """
        self._require_started()
        awaited = self._fresh or set(self._lanes)
        self._pool.wait_acting(lambda: not awaited.isdisjoint(self._pool.ready_lanes()), self._timeout)
        lanes = [lane for lane in self._pool.ready_lanes() if lane in awaited]
        if not lanes:
            raise WaitTimeoutError(f"no lane finished within {self._timeout} s")
        self._fresh.difference_update(lanes)
        env_id = np.concatenate([np.arange(self.num_envs)[self._lane_rows[lane]] for lane in lanes])
        infos: dict[str, Any] = {"env_id": env_id}
        rows_infos = [info for lane in lanes for info in self._pool.infos(lane)]
        for place, info in enumerate(rows_infos):
            infos = self._add_info(infos, info, place)
        return (*self._results(lanes), infos)

    def close_extras(self, **kwargs: Any) -> None:
        """Stops the workers; called by `close`."""
        self._pool.close()

    def _as_arrays(self, actions: Any) -> Tree:
        """Converts actions to arrays in the structure of the space; raises UserError for any other structure."""
        try:
            return map_leaves(lambda _, values: np.asarray(values), self._pool.spec.action, actions)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"expected actions as action_space.sample() gives them ({self.action_space}), got {type(actions).__name__}"
            ) from error

    def _send_lane(self, lane: int, actions: Tree) -> None:
        if not self._pool.wait_lane(lane, self._timeout):
            raise WaitTimeoutError(f"lane {lane} was not ready for actions within {self._timeout} s")
        sequence, t = self._pool.position(lane)
        slot = self._pool.views[sequence % self._pool.shape.num_slots]
        store(self._pool.spec.action, actions, take(slot.action, (t, self._lane_rows[lane])))
        self._pool.post_actions(lane)
        self._release_slots(lane)

    def _release_slots(self, lane: int) -> None:
        """Releases full slots when a lane has posted the first step of a slot.

        They may still hold another lane's newest results, which stay valid until that lane reaches the slot again.
        """
        if self._pool.position(lane)[1] != 1:
            return
        while (full := self._pool.acquire(0.0)) is not None:
            self._pool.release(full)

    def _results(self, lanes: list[int]) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        rewards, terminations, truncations = [], [], []
        for lane in lanes:
            sequence, t = divmod(self._step(lane) - 1, _WINDOW)
            slot, rows = self._pool.views[sequence % self._pool.shape.num_slots], self._lane_rows[lane]
            rewards.append(slot.reward[t, rows])
            terminations.append(slot.terminated[t, rows].copy())
            truncations.append(slot.truncated[t, rows].copy())
        return (
            self._observations(lanes),
            np.concatenate(rewards),
            np.concatenate(terminations),
            np.concatenate(truncations),
        )

    def _observations(self, lanes: Sequence[int] | None = None) -> Tree:
        parts = []
        for lane in self._lanes if lanes is None else lanes:
            sequence, t = self._pool.position(lane)
            slot = self._pool.views[sequence % self._pool.shape.num_slots]
            parts.append(take(slot.observation, (t, self._lane_rows[lane])))
        return restored(self._pool.spec.observation, concatenated(parts))

    def _infos(self) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for row, info in enumerate(info for lane in self._lanes for info in self._pool.infos(lane)):
            infos = self._add_info(infos, info, row)
        return infos

    def _requests(
        self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> list[GymnasiumReset]:
        seeds: list[int | None]
        if seed is None:
            seeds = [None] * self.num_envs
        elif isinstance(seed, int | np.integer):
            seeds = [int(seed) + row for row in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise UserError(
                f"expected one seed per environment, got {len(seeds)} seeds for {self.num_envs} environments"
            )
        shape = self._pool.shape
        return [GymnasiumReset(tuple(seeds[shape.part_rows(part)]), options) for part in range(shape.num_parts)]

    def _step(self, lane: int) -> int:
        sequence, t = self._pool.position(lane)
        return sequence * _WINDOW + t

    def _require_lanes(self, timeout: float | None = None) -> None:
        for lane in self._lanes:
            if not self._pool.wait_lane(lane, self._timeout if timeout is None else timeout):
                raise WaitTimeoutError(f"lane {lane} (rows {self._lane_rows[lane]}) did not finish in time")

    def _require_started(self) -> None:
        if not self._started:
            raise UserError("reset the environments before the first step")


def _shape(num_envs: int, num_workers: int | None, lanes_per_worker: int) -> PoolShape:
    if num_workers is None:
        cores = len(os.sched_getaffinity(0))
        fitting = [count for count in range(1, cores + 1) if num_envs % (count * lanes_per_worker) == 0]
        num_workers = max(fitting, default=1)
    parts = num_workers * lanes_per_worker
    if num_envs < 1 or num_envs % parts:
        raise UserError(
            f"num_envs must be a multiple of num_workers x lanes_per_worker: got {num_envs}, {num_workers} and "
            f"{lanes_per_worker}"
        )
    return PoolShape(num_workers, lanes_per_worker, num_workers, num_envs // parts, _WINDOW, 2)
