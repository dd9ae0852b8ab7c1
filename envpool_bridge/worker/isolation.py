"""Environments stepped one by one, so that a failing one does not affect the others: the option "drop_episode"."""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, cast

import numpy as np

from envpool_bridge.envs.closing import close_each, closed_on_error
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
    """One environment, its last observation, and its restart budget.

    Attributes:
        episodes: [rows] int64, episode of each row, as the steps have published it.
        plays: whether the environment plays that episode; if not, a step starts a later one.
        skips: number of episodes before that later one. Their resets have failed.
        broken: whether the environment must be replaced first.
    """

    def __init__(self, rows: slice, inside: EnvRows, budget: RestartBudget) -> None:
        self.rows, self.inside, self.budget = rows, inside, budget
        self.count = rows.stop - rows.start
        self.episodes = np.zeros(self.count, np.int64)
        self.plays, self.skips, self.broken = True, 0, False
        self.shown: Tree = None  # views of the slot: [rows, ...] a leaf

    def start(self, later: int, out: FirstRows | StepRows, stages: tuple[int, ...] = ()) -> None:
        """Resets the environment to the episode that is `later` episodes after the published one."""
        episodes = tuple((self.episodes + later).tolist())
        self.inside.reset(EpisodeReset(episodes, (None,) * self.count, stages=stages), out)

    def repeat(self, shown: Tree, out: StepRows) -> EnvRows:
        """Writes an invalid step with the observation `shown`; returns rows that do so."""
        rows = DisabledRows(self.count, shown)
        out.prepare()  # a failed step may have written a part of it
        rows.step(None, out)
        return rows


class IsolatedRows:
    """Rows of `EnvRows` whose environments are replaced when they fail. Process-safety: used by the worker that made it.

    The seed of an episode follows from its number, which the steps publish by their flags `is_first`. Therefore every
    episode whose reset fails takes one invalid step, which repeats the last observation.

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
        read_stage: Function that reads the stage, as in StagedRows.
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
        with closed_on_error() as made:
            for rows in spans:
                made.append(self._make(rows))
            self._envs = [
                _Environment(rows, inside, RestartBudget(*budget)) for rows, inside in zip(spans, made, strict=True)
            ]

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Starts or replays episodes in all rows; an environment that fails is replaced."""
        if not isinstance(request, EpisodeReset):
            raise ValueError("replaceable environments need an EpisodeReset")
        for env in self._envs:
            rows = env.rows
            own = EpisodeReset(request.episodes[rows], request.actions[rows], request.on_step, request.stages[rows])
            part = rows_of_step(out, rows) if isinstance(out, StepRows) else rows_of_first(out, rows)
            env.episodes, env.shown = np.array(own.episodes, np.int64), part.observation
            env.plays, env.skips, env.broken = True, 0, False
            try:
                env.inside.reset(own, part)
            except _FAILURES as error:
                self._show_later(env, error, part, own.stages)
            env.shown = part.observation

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every environment; see the protocol. A failing environment is replaced, with a new episode."""
        # A non-finite action is the policy's fault and stops the run.
        recoverable = _FAILURES if all(np.isfinite(leaf).all() for leaf in leaves(action)) else ()
        for env in self._envs:
            part = rows_of_step(out, env.rows)
            if env.plays:
                try:
                    env.inside.step(take(action, env.rows), part)
                    env.inside.verify(take(part.observation, None), part.reward[None])
                except recoverable as error:
                    self._report(error)
                    env.broken = True
                    self._start_next(env, part, made_progress=True)
                    self.on_cut(env.rows)
            else:
                self._start_next(env, part, made_progress=False)
            env.episodes += part.is_first.all()  # not where an agent joins
            env.shown = part.observation

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """Does nothing: `step` validates every step."""

    def close(self) -> None:
        """Closes all environments. Raises the first exception of one after all have been closed."""
        close_each([env.inside for env in self._envs])

    def _make(self, rows: slice) -> EnvRows:
        inside = self._source.make_rows(self._row_ids[rows], self._run_seed, False)
        if self._has_stages:
            cast("StagedRows", inside).read_stage = lambda row: self.read_stage(rows.start + row)
        return inside

    def _show_later(
        self, env: _Environment, error: Exception, out: FirstRows | StepRows, stages: tuple[int, ...]
    ) -> None:
        """Shows the start of the first later episode whose reset succeeds, and lets a later step start that episode.

        Raises:
            Exception: `error`, if the environment has failed too often.
        """
        failed = error
        while True:
            self._report(failed)
            if env.budget.grant(monotonic(), made_progress=failed is error) is None:
                raise error
            if isinstance(out, StepRows):
                out.prepare()  # the failed reset may have written a part of it
            try:
                self._replace(env)
                env.start(env.skips + 1, out, stages)
            except Exception as again:  # noqa: BLE001  any error of a constructor counts against the budget
                env.skips += 1
                failed = again
            else:
                env.plays = False
                return

    def _start_next(self, env: _Environment, out: StepRows, made_progress: bool) -> None:
        """Starts the next episode, or publishes that it is skipped; disables an environment that has failed too often."""
        shown = map_leaves(np.copy, env.shown)
        env.plays = False
        if env.broken and env.budget.grant(monotonic(), made_progress) is None:
            self._close_broken(env)
            env.inside, env.plays = env.repeat(shown, out), True
            self.on_disabled(env.count)
            return
        if env.skips:
            env.skips -= 1
            env.repeat(shown, out)
            return
        out.prepare()  # a failed step may have written a part of it
        try:
            if env.broken:
                self._replace(env)
            env.start(1, out)
            env.plays, env.broken = True, False
        except Exception as error:  # noqa: BLE001  as above
            self._report(error)
            env.broken = True
            env.repeat(shown, out)

    def _replace(self, env: _Environment) -> None:
        self._close_broken(env)
        env.inside = self._make(env.rows)

    def _close_broken(self, env: _Environment) -> None:
        with contextlib.suppress(Exception):  # a broken environment may fail to close as well
            env.inside.close()

    def _report(self, error: Exception) -> None:
        self.on_failure(f"{error}; its episode is dropped\n{''.join(traceback.format_exception(error))}")
