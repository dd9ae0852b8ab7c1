"""Steps of a pool's lanes: writes actions into the ring, sends requests, reads the newest results."""

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envpool_bridge.envs.vector_requests import RowReport, StartRequest, VectorRequest
from envpool_bridge.envs.vector_rows import VectorRowsSource
from envpool_bridge.errors import UserError, WaitTimeoutError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.spec.encoding import concatenated, restored, store
from envpool_bridge.spec.tree import Tree, map_leaves, take
from envpool_bridge.vector_env.arguments import WINDOW

MakeRequest = Callable[[slice], VectorRequest]


class Lanes:
    """Lanes of one pool. The constructor creates the pool, and `start` its workers.

    Args:
        source: makes the rows. If it shares final observations, a row's observation is the pair (newest, final).
        shape: division of the rows.
        timeout_seconds: time limit of a wait.

    Attributes:
        all: index of every lane.
        rows: rows of each lane.
    """

    def __init__(self, source: VectorRowsSource, shape: PoolShape, timeout_seconds: float) -> None:
        # The caller's time limits apply, and may be longer than the supervisor's. It still detects dead workers.
        supervision = SupervisorOptions(step_timeout_seconds=math.inf)
        self._pool = EnvPool(source, shape, PoolOptions(keep_infos=True, verify_every=1, supervision=supervision))
        self._spec, self._has_finals = source.env_spec.observation, source.shares_final_observations
        self._timeout, self._process = timeout_seconds, os.getpid()
        self._num_released = 0  # slots
        self.all = list(range(shape.num_lanes))
        self.rows = [shape.lane_rows(lane) for lane in self.all]

    @property
    def pool(self) -> EnvPool:
        """The pool of the lanes."""
        return self._pool

    def start(self) -> list[dict[str, Any] | RowReport]:
        """Starts the workers, waits for them, and returns a report for each row."""
        self._pool.start([StartRequest() for _ in range(self._pool.shape.num_parts)])
        self.wait(SupervisorOptions().start_timeout_seconds)
        return self.reports(self.all)

    def request(self, make_request: MakeRequest) -> None:
        """Sends requests to all rows, once every lane is ready.

        Args:
            make_request: makes the request of a span of rows.

        Raises:
            WaitTimeoutError: If a lane is still in an earlier step; no request was sent.
        """
        shape = self._pool.shape
        self.wait()
        self._pool.post_resets([make_request(shape.part_rows(part)) for part in range(shape.num_parts)])
        for lane in self.all:
            self._release_slots(lane)

    def act(self, lane: int, actions: Tree) -> None:
        """Sends the actions of a lane's rows, once the lane is ready."""
        if not self._pool.wait_lane(lane, self._timeout):
            raise WaitTimeoutError(f"lane {lane} was not ready for actions within {self._timeout} s")
        store(self._pool.spec.action, actions, self._pool.next_action(lane))
        self._pool.post_actions(lane)
        self._release_slots(lane)

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Waits until every lane is ready.

        Raises:
            WaitTimeoutError: If a lane is not ready in time, and continues its step.
        """
        limit = self._timeout if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + limit
        for lane in self.all:
            if self._pool.wait_lane(lane, max(0.0, deadline - time.monotonic())):
                continue
            # A wait of 0 s receives nothing, but repeated ones must read large infos and detect a dead worker.
            self._pool.check()
            if not self._pool.wait_lane(lane, 0.0):
                raise WaitTimeoutError(
                    f"lane {lane} (rows {self.rows[lane]}) did not finish in time ({limit:g} s): wait again, or close"
                )

    def wait_any(self, lanes: Sequence[int]) -> int:
        """Waits until one of these lanes is ready; returns the first that is.

        Raises:
            WaitTimeoutError: If no lane is ready in time.
        """
        self._pool.wait_acting(lambda: not set(lanes).isdisjoint(self._pool.ready_lanes()), self._timeout)
        ready = set(self._pool.ready_lanes())
        for lane in lanes:
            if lane in ready:
                return lane
        raise WaitTimeoutError(f"no lane finished within {self._timeout} s")

    def results(self, lanes: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns rewards, terminations and truncations of these ready lanes: copies."""
        if self._are_together(lanes):
            sequence, t = divmod(self._step(lanes[0]) - 1, WINDOW)
            slot = self._pool.views[sequence % self._pool.shape.num_slots]
            return slot.reward[t].copy(), slot.terminated[t].copy(), slot.truncated[t].copy()
        fields: tuple[list[np.ndarray], ...] = ([], [], [])
        for lane in lanes:
            sequence, t = divmod(self._step(lane) - 1, WINDOW)
            slot, rows = self._pool.views[sequence % self._pool.shape.num_slots], self.rows[lane]
            for field, values in zip(fields, (slot.reward, slot.terminated, slot.truncated), strict=True):
                field.append(values[t, rows])
        rewards, terminations, truncations = (np.concatenate(field) for field in fields)
        return rewards, terminations, truncations

    def observations(self, lanes: Sequence[int], copy: bool) -> Tree:
        """Returns the newest observations of these ready lanes.

        Args:
            lanes: Lanes in order.
            copy: False returns views of the ring where all rows are at the same step and are stored unconverted. They
                change after the next step.
        """
        if self._are_together(lanes):
            observation, t = self._stored(lanes[0])
            return restored(self._spec, take(self._newest(observation), t), copy)
        parts: list[Tree] = []
        for lane in lanes:
            observation, t = self._stored(lane)
            parts.append(take(self._newest(observation), (t, self.rows[lane])))
        return restored(self._spec, concatenated(parts), copy=False)

    def row_ids(self, lanes: Sequence[int]) -> np.ndarray:
        """Returns the rows of these lanes, [N] int64."""
        return np.concatenate([np.arange(self.rows[lane].start, self.rows[lane].stop) for lane in lanes])

    def lanes_of(self, row_ids: np.ndarray) -> list[int]:
        """Returns the lanes of these rows.

        Raises:
            UserError: If the rows are not those of whole lanes.
        """
        size = self.rows[0].stop
        lanes = sorted({int(row) // size for row in row_ids})
        if not set(lanes) <= set(self.all) or not np.array_equal(np.sort(row_ids), self.row_ids(lanes)):
            raise UserError(
                f"send needs whole lanes of {size} environments, as recv gives them; got {row_ids.tolist()}"
            )
        return lanes

    def final_observations(self, lanes: Sequence[int], ended: np.ndarray) -> Tree:
        """Returns copies of the final observations of rows whose episodes ended in the newest step of these ready lanes.

        Args:
            lanes: Lanes in order.
            ended: indices of these rows among all rows of the lanes, [N] int64, in ascending order.
        """
        if self._are_together(lanes):
            observation, t = self._stored(lanes[0])
            chosen = map_leaves(lambda leaf: leaf[t].take(ended, 0), observation[1])
            return restored(self._spec, chosen, copy=False)
        rows = self.row_ids(lanes)[ended]
        parts: list[Tree] = []
        for lane in lanes:
            span = self.rows[lane]
            chosen = rows[(rows >= span.start) & (rows < span.stop)]
            if len(chosen):
                observation, t = self._stored(lane)
                parts.append(take(observation[1], (t, chosen)))
        return restored(self._spec, concatenated(parts), copy=False)

    def _are_together(self, lanes: Sequence[int]) -> bool:
        """Returns whether these are all lanes and at the same step, so that their results need not be joined."""
        return len(lanes) == len(self.all) and len({self._step(lane) for lane in lanes}) == 1

    def _stored(self, lane: int) -> tuple[Tree, int]:
        """Returns the observations of the slot with a lane's newest one, and its step there."""
        sequence, t = self._pool.position(lane)
        return self._pool.views[sequence % self._pool.shape.num_slots].observation, t

    def _newest(self, observation: Tree) -> Tree:
        return observation[0] if self._has_finals else observation

    def reports(self, lanes: Sequence[int]) -> list[dict[str, Any] | RowReport]:
        """Returns infos or a report for each row of these ready lanes."""
        return [report for lane in lanes for report in self._pool.infos(lane)]

    def close(self, timeout_seconds: float | None = None) -> None:
        """Stops the workers; kills those that are still in a step after `timeout_seconds`.

        Does nothing in a child that `os.fork` made: the workers are its parent's.
        """
        if os.getpid() != self._process:
            return
        if timeout_seconds is None:
            self._pool.close()
        else:
            self._pool.close(timeout_seconds)

    def _release_slots(self, lane: int) -> None:
        """Releases earlier slots when a lane has posted the first step of a slot, so that it can start the next one.

        Lanes that are behind still fill them. Each lane writes only its own rows of a slot, and keeps its newest results
        until it reaches the slot again itself.
        """
        sequence, t = self._pool.position(lane)
        if t != 1:
            return
        for earlier in range(self._num_released, sequence):
            self._pool.release(earlier)
            self._num_released = earlier + 1

    def _step(self, lane: int) -> int:
        sequence, t = self._pool.position(lane)
        return sequence * WINDOW + t
