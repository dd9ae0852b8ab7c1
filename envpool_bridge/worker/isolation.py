"""Environments stepped one by one, so that one that fails takes no other with it: the policy "drop_episode"."""

import contextlib
import traceback
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from envpool_bridge.envs.protocol import EnvRows, EnvSource, EpisodeReset, FirstRows, ResetRequest, StepRows
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from envpool_bridge.options import RestartBudget
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree, leaves, map_leaves, take
from envpool_bridge.worker.recovery import DisabledRows, rows_of_first, rows_of_step

_FAILURES = (WorkerError, BadEnvOutputError)


class _Environment:
    """One environment, what it showed last, and how often it was made anew."""

    def __init__(self, rows: slice, inside: EnvRows, budget: RestartBudget, episode: int) -> None:
        self.rows, self.inside, self.budget, self.episode = rows, inside, budget, episode
        self.shown: Tree = None  # views of the slot: [rows, ...] a leaf


class IsolatedRows:
    """Keeps the protocol `EnvRows`. Process-safety: the worker's that made it.

    Attributes:
        on_cut: called with the rows whose episode was dropped at this step; they are written already.
        on_disabled: called with the number of rows that will not be stepped any more.
        on_failure: called with what is to be told about a failure.
    """

    def __init__(
        self, source: EnvSource, spec: EnvSpec, row_ids: Sequence[int], run_seed: int, budget: tuple[int, float]
    ) -> None:
        """Makes the environments.

        Args:
            source: makes them.
            spec: of the source.
            row_ids: of the run, whole environments.
            run_seed: of the run.
            budget: how often an environment may be made anew, within how many seconds.
        """
        self.num_rows = len(row_ids)
        self.infos: list[dict[str, Any]] = []
        self.on_cut: Callable[[slice], None] = lambda rows: None
        self.on_disabled: Callable[[int], None] = lambda rows: None
        self.on_failure: Callable[[str], None] = lambda text: None
        self._source, self._row_ids, self._run_seed = source, list(row_ids), run_seed
        size = spec.rows_per_env
        spans = [slice(begin, begin + size) for begin in range(0, len(row_ids), size)]
        self._envs = [_Environment(rows, self._make(rows), RestartBudget(*budget), 0) for rows in spans]

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Begins or replays episodes everywhere; one that fails to is made anew."""
        if not isinstance(request, EpisodeReset):
            raise ValueError("environments that are made anew need an EpisodeReset")
        for env in self._envs:
            rows = env.rows
            mine = EpisodeReset(request.episodes[rows], request.actions[rows], request.on_step)
            part = rows_of_step(out, rows) if isinstance(out, StepRows) else rows_of_first(out, rows)
            env.episode, env.shown = max(mine.episodes), part.observation
            try:
                env.inside.reset(mine, part)
            except _FAILURES as error:
                if not self._replace(env, error, part):
                    raise
            env.shown = part.observation

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every environment; see the protocol. One that fails begins a new episode in a new environment."""
        # An action that is not finite is the policy's fault, and stops the run.
        excused = _FAILURES if all(np.isfinite(leaf).all() for leaf in leaves(action)) else ()
        for env in self._envs:
            part = rows_of_step(out, env.rows)
            try:
                env.inside.step(take(action, env.rows), part)
                env.inside.verify(take(part.observation, None), part.reward[None])
            except excused as error:
                shown = map_leaves(np.copy, env.shown)
                if not self._replace(env, error, part):
                    self._disable(env, shown, part)
                self.on_cut(env.rows)
            else:
                env.episode += int(part.is_first.any())
            env.shown = part.observation

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """Done at every step."""

    def close(self) -> None:
        """Closes all environments."""
        for env in self._envs:
            env.inside.close()

    def _make(self, rows: slice) -> EnvRows:
        return self._source.make_rows(self._row_ids[rows], self._run_seed, False)

    def _replace(self, env: _Environment, error: Exception, out: FirstRows | StepRows) -> bool:
        """Makes the environment anew and begins its next episode; False if it has failed too often."""
        failed: Exception = error
        while True:
            self.on_failure(f"{failed}; its episode is dropped\n{''.join(traceback.format_exception(failed))}")
            if env.budget.grant(monotonic(), got_on=failed is error) is None:
                return False
            env.episode += 1
            count = env.rows.stop - env.rows.start
            with contextlib.suppress(Exception):  # it is broken, and may fail to close as well
                env.inside.close()
            if isinstance(out, StepRows):
                out.prepare()  # the failed step may have left some of it written
            try:
                env.inside = self._make(env.rows)
                env.inside.reset(EpisodeReset((env.episode,) * count, (None,) * count), out)
                return True
            except Exception as again:  # noqa: BLE001  whatever a constructor raises: it counts against the budget
                failed = again

    def _disable(self, env: _Environment, shown: Tree, out: StepRows) -> None:
        count = env.rows.stop - env.rows.start
        env.inside = DisabledRows(count, shown)
        out.prepare()
        env.inside.step(None, out)
        self.on_disabled(count)
