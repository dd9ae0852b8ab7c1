"""Sources whose environments are stepped by worker processes, for evaluation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from envpool_bridge.envs.function_source import AnyEnv, as_source
from envpool_bridge.envs.protocol import (
    EnvRows,
    EnvSource,
    EpisodeReset,
    FirstRows,
    ResetRequest,
    RestingRows,
    StepRows,
    first_rows,
    step_rows,
)
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError, WaitTimeoutError
from envpool_bridge.options import SupervisorOptions
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.segment import validate_machine
from envpool_bridge.spec.specs import EnvSpec, num_frames
from envpool_bridge.spec.tree import Tree, write
from envpool_bridge.supervisor.processes import pickle_source
from jaxsrl.evaluation.evaluate import for_evaluation

_STEPS = 16  # of a slot


@dataclasses.dataclass(frozen=True)
class WorkerSource:
    """Source whose rows are stepped by worker processes; implements `EnvSource`. The episodes are those of `source`.

    Attributes:
        source: makes the environments, in the workers.
        processes: largest number of workers; fewer are started if the environments cannot be divided equally.
        supervision: time limits of the workers.
    """

    source: EnvSource
    processes: int
    supervision: SupervisorOptions

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
        return WorkerRows(self, row_ids, run_seed)


def in_workers(source: AnyEnv, processes: int, supervision: SupervisorOptions | None = None) -> EnvSource:
    """Returns a source of the same episodes whose rows are stepped by worker processes.

    Args:
        source: Source of the environments, or a function that makes one.
        processes: largest number of workers; 0 returns the source itself.
        supervision: time limits of the workers; the defaults if None.

    Raises:
        UserError: `processes` is negative, the source cannot be sent to workers, or the environments are a native vector, which
            steps in its own threads.
    """
    source = as_source(source)
    if processes < 0:
        raise UserError(f"the number of worker processes must be at least 0: got {processes}")
    if processes == 0:
        return source
    source = for_evaluation(source)
    if isinstance(source, VectorSource):
        raise UserError(
            f"{source.spec().env_id} steps in its own threads: expected 0 worker processes, got {processes}"
        )
    validate_machine()
    pickle_source(source)
    # A worker that dies ends the evaluation: an episode that is cut has no return.
    return WorkerSource(source, processes, dataclasses.replace(supervision or SupervisorOptions(), max_restarts=0))


@dataclasses.dataclass(frozen=True)
class _RestingSource:
    """Source whose rows rest after a number of episodes each, if they can."""

    source: EnvSource
    num_episodes: Sequence[int]

    def spec(self) -> EnvSpec:
        return self.source.spec()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        rows = self.source.make_rows(row_ids, run_seed, keep_infos)
        if self.num_episodes and isinstance(rows, RestingRows):
            rows.num_episodes = [self.num_episodes[row] for row in row_ids]
        return rows


class WorkerRows:
    """Rows that step together in several processes; implements `EnvRows`.

    Args:
        source: Source of the environments.
        row_ids: ids of the rows, from 0.
        run_seed: seed of the episodes.

    Attributes:
        num_episodes: Number of episodes, as in `GymnasiumRows`; set before the reset.
    """

    def __init__(self, source: WorkerSource, row_ids: Sequence[int], run_seed: int | None) -> None:
        self.num_rows = len(row_ids)
        self.num_episodes: Sequence[int] = ()
        self.infos: list[dict[str, Any]] = []
        self._source, self._run_seed = source, run_seed
        self._pool: EnvPool | None = None

    @property
    def repaired_outputs(self) -> int:
        """Returns the number of outputs that environments did not return as declared."""
        return 0 if self._pool is None else self._pool.supervision.outputs_repaired

    def _open(self) -> EnvPool:
        source, spec = self._source, self._source.spec()
        num_envs = self.num_rows // spec.rows_per_env
        workers = next(number for number in range(min(source.processes, num_envs), 0, -1) if num_envs % number == 0)
        # One lane of all workers. A slot has more steps than a stack of frames, so that it can be copied into the next one.
        shape = PoolShape(workers, 1, workers, self.num_rows // workers, max(_STEPS, num_frames(spec)), 2)
        # Values are validated before the policy sees them.
        options = PoolOptions(run_seed=self._run_seed, supervision=source.supervision, verify_every=1)
        return EnvPool(_RestingSource(source.source, self.num_episodes), shape, options, spec=spec)

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Starts the workers, and the first episode of every row.

        Args:
            request: an `EpisodeReset`.
            out: target of the first observations.
        """
        if not isinstance(request, EpisodeReset):
            raise TypeError(f"expected an EpisodeReset, got {type(request).__name__}")
        self.close()  # of an earlier reset
        self._pool = pool = self._open()
        parts = [pool.shape.part_rows(part) for part in range(pool.shape.num_parts)]
        pool.start([EpisodeReset(request.episodes[rows], request.actions[rows]) for rows in parts])
        self._wait(pool, self._source.supervision.start_timeout_seconds)
        first = first_rows(pool.views[0])
        write(out.observation, first.observation)
        out.is_first[...] = first.is_first

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every row."""
        pool = self._pool
        assert pool is not None
        sequence, t = pool.position(0)
        write(pool.next_action(0), action)
        pool.post_actions(0)
        self._wait(pool, self._source.supervision.step_timeout_seconds)
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
        if self._pool is not None:
            self._pool.close()

    def _wait(self, pool: EnvPool, seconds: float) -> None:
        """Waits for all rows; the supervisor kills a worker that exceeds its own limit, which raises here."""
        if not pool.wait_lane(0, 2 * seconds):
            raise WaitTimeoutError(f"{pool.spec.env_id}: no step within {2 * seconds:g} s")
