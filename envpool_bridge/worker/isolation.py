"""Environments stepped one by one, so that a failing one does not affect the others: the option "drop_episode"."""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, cast

import numpy as np

from envpool_bridge.envs.protocol import (
    EnvRows,
    EnvSource,
    EpisodeReset,
    FirstRows,
    ResetRequest,
    StagedRows,
    StepRows,
    has_stages,
    initial_stage,
)
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from envpool_bridge.options import RestartBudget
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree, leaves, map_leaves, take
from envpool_bridge.worker.recovery import DisabledRows, rows_of_first, rows_of_step

_FAILURES = (WorkerError, BadEnvOutputError)


class _Environment:
    """One environment, its last observation, and its restart budget."""

    def __init__(self, rows: slice, inside: EnvRows, budget: RestartBudget, episode: int) -> None:
        self.rows, self.inside, self.budget, self.episode = rows, inside, budget, episode
        self.shown: Tree = None  # views of the slot: [rows, ...] a leaf


class IsolatedRows:
    """Rows of `EnvRows` whose environments are replaced when they fail. Process-safety: used by the worker that made it.

    Args:
        source: makes the environments.
        spec: spec of the source.
        row_ids: rows of the run, whole environments.
        run_seed: seed of the run.
        budget: restarts of an environment, and the time window in seconds.

    Attributes:
        on_cut: called with the rows whose episode was dropped at this step; they are written already.
        on_disabled: called with the number of rows that are no longer stepped.
        on_failure: called with a description of a failure.
        read_stage: as in StagedRows.
    """

    def __init__(
        self, source: EnvSource, spec: EnvSpec, row_ids: Sequence[int], run_seed: int, budget: tuple[int, float]
    ) -> None:
        self.num_rows = len(row_ids)
        self.infos: list[dict[str, Any]] = []
        self.on_cut: Callable[[slice], None] = lambda rows: None
        self.on_disabled: Callable[[int], None] = lambda rows: None
        self.on_failure: Callable[[str], None] = lambda text: None
        self.read_stage: Callable[[int], int | None] = lambda row: initial_stage(spec)
        self._has_stages = has_stages(spec)
        self._source, self._row_ids, self._run_seed = source, list(row_ids), run_seed
        size = spec.rows_per_env
        spans = [slice(begin, begin + size) for begin in range(0, len(row_ids), size)]
        self._envs = [_Environment(rows, self._make(rows), RestartBudget(*budget), 0) for rows in spans]

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Starts or replays episodes in all rows; an environment that fails is replaced."""
        if not isinstance(request, EpisodeReset):
            raise ValueError("replaceable environments need an EpisodeReset")
        for env in self._envs:
            rows = env.rows
            own = EpisodeReset(request.episodes[rows], request.actions[rows], request.on_step, request.stages[rows])
            part = rows_of_step(out, rows) if isinstance(out, StepRows) else rows_of_first(out, rows)
            env.episode, env.shown = max(own.episodes), part.observation
            try:
                env.inside.reset(own, part)
            except _FAILURES as error:
                if not self._replace(env, error, part, own.stages):
                    raise
            env.shown = part.observation

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every environment; see the protocol. A failing environment is replaced, with a new episode."""
        # A non-finite action is the policy's fault and stops the run.
        recoverable = _FAILURES if all(np.isfinite(leaf).all() for leaf in leaves(action)) else ()
        for env in self._envs:
            part = rows_of_step(out, env.rows)
            try:
                env.inside.step(take(action, env.rows), part)
                env.inside.verify(take(part.observation, None), part.reward[None])
            except recoverable as error:
                shown = map_leaves(np.copy, env.shown)
                if not self._replace(env, error, part):
                    self._disable(env, shown, part)
                self.on_cut(env.rows)
            else:
                env.episode += int(part.is_first.any())
            env.shown = part.observation

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """Does nothing: `step` validates every step."""

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs:
            env.inside.close()

    def _make(self, rows: slice) -> EnvRows:
        inside = self._source.make_rows(self._row_ids[rows], self._run_seed, False)
        if self._has_stages:
            cast("StagedRows", inside).read_stage = lambda row: self.read_stage(rows.start + row)
        return inside

    def _replace(
        self, env: _Environment, error: Exception, out: FirstRows | StepRows, stages: tuple[int, ...] = ()
    ) -> bool:
        """Makes a new environment and starts its next episode; returns False if it has failed too often."""
        failed: Exception = error
        while True:
            self.on_failure(f"{failed}; its episode is dropped\n{''.join(traceback.format_exception(failed))}")
            if env.budget.grant(monotonic(), made_progress=failed is error) is None:
                return False
            env.episode += 1
            count = env.rows.stop - env.rows.start
            with contextlib.suppress(Exception):  # a broken environment may fail to close as well
                env.inside.close()
            if isinstance(out, StepRows):
                out.prepare()  # the failed step may have written a part of it
            try:
                env.inside = self._make(env.rows)
                env.inside.reset(EpisodeReset((env.episode,) * count, (None,) * count, stages=stages), out)
                return True
            except Exception as again:  # noqa: BLE001  any error of a constructor counts against the budget
                failed = again

    def _disable(self, env: _Environment, shown: Tree, out: StepRows) -> None:
        count = env.rows.stop - env.rows.start
        env.inside = DisabledRows(count, shown)
        out.prepare()
        env.inside.step(None, out)
        self.on_disabled(count)
