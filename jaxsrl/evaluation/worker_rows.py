"""Sources whose environments are stepped by worker processes, for evaluation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_bridge.envs.protocol import (
    EnvRows,
    EnvSource,
    EpisodeReset,
    FirstRows,
    ResetRequest,
    StepRows,
    first_rows,
    step_rows,
)
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError, WaitTimeoutError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.spec.specs import EnvSpec, num_frames
from envpool_bridge.spec.tree import Tree, write
from jaxsrl.evaluation.evaluate import for_evaluation

_STEPS = 16  # of a slot


@dataclasses.dataclass(frozen=True)
class WorkerSource:
    """Source whose rows are stepped by worker processes; implements `EnvSource`. The episodes are those of `source`.

    Attributes:
        source: makes the environments, in the workers.
        processes: largest number of workers; fewer are started if the environments cannot be divided equally.
    """

    source: EnvSource
    processes: int

    def spec(self) -> EnvSpec:
        """Returns the spec of a row."""
        return self.source.spec()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Starts the workers.

        Raises:
            UserError: infos are asked for.
        """
        if keep_infos:
            raise UserError(
                "worker processes of an evaluation return no infos: use the source of the environments itself"
            )
        return WorkerRows(self.source, self.spec(), row_ids, run_seed, self.processes)


def in_workers(source: EnvSource, processes: int) -> EnvSource:
    """Returns the source of the same episodes, stepped by at most `processes` worker processes; the source itself for 0.

    Raises:
        UserError: the environments are a native vector, which steps in its own threads.
    """
    if not processes:
        return source
    source = for_evaluation(source)
    if isinstance(source, VectorSource):
        raise UserError(
            f"{source.spec().env_id} steps in its own threads: expected 0 worker processes, got {processes}"
        )
    return WorkerSource(source, processes)


class WorkerRows:
    """Rows that step together in several processes; implements `EnvRows`.

    A worker that dies ends the evaluation: an episode that is cut has no return.

    Args:
        source: makes the environments.
        spec: its spec.
        row_ids: consecutive ids of the rows.
        run_seed: seed of the episodes.
        processes: as in `WorkerSource`.
    """

    def __init__(
        self, source: EnvSource, spec: EnvSpec, row_ids: Sequence[int], run_seed: int | None, processes: int
    ) -> None:
        num_rows = len(row_ids)
        num_envs = num_rows // spec.rows_per_env
        workers = next(number for number in range(min(processes, num_envs), 0, -1) if num_envs % number == 0)
        # One lane of all workers. A slot has more steps than a stack of frames, so that it can be copied into the next one.
        shape = PoolShape(workers, 1, workers, num_rows // workers, max(_STEPS, num_frames(spec)), 2)
        self._limits = SupervisorOptions(max_restarts=0)
        # Values are validated before the policy sees them.
        options = PoolOptions(run_seed=run_seed, supervision=self._limits, verify_every=1, first_row=row_ids[0])
        self._pool = EnvPool(source, shape, options, spec=spec)
        self.num_rows = num_rows
        self.infos: list[dict[str, Any]] = []

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Starts the first episode of every row.

        Args:
            request: an `EpisodeReset`.
            out: target of the first observations.
        """
        if not isinstance(request, EpisodeReset):
            raise TypeError(f"expected an EpisodeReset, got {type(request).__name__}")
        shape = self._pool.shape
        parts = [shape.part_rows(part) for part in range(shape.num_parts)]
        self._pool.start([EpisodeReset(request.episodes[rows], request.actions[rows]) for rows in parts])
        self._wait(self._limits.start_timeout_seconds)
        first = first_rows(self._pool.views[0])
        write(out.observation, first.observation)
        out.is_first[...] = first.is_first

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every row."""
        pool = self._pool
        sequence, t = pool.position(0)
        write(pool.next_action(0), action)
        pool.post_actions(0)
        self._wait(self._limits.step_timeout_seconds)
        done = step_rows(pool.views[sequence % pool.shape.num_slots], t)
        write(out.observation, done.observation)
        for name in ("is_first", "reward", "terminated", "truncated", "valid"):
            getattr(out, name)[...] = getattr(done, name)
        for name, values in done.infos.items():
            out.infos[name][...] = values
        if t + 1 == pool.shape.rollout_length:
            pool.release(sequence)

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """Returns at once: the workers have validated all values."""

    def close(self) -> None:
        """Ends the worker processes; idempotent."""
        self._pool.close()

    def _wait(self, seconds: float) -> None:
        """Waits for all rows; the supervisor kills a worker that exceeds its own limit, which raises here."""
        if not self._pool.wait_lane(0, 2 * seconds):
            raise WaitTimeoutError(f"{self._pool.spec.env_id}: no step within {2 * seconds:g} s")
