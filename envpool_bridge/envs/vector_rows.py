"""Rows of a vector environment: autoreset modes, partial resets, calls, attributes, and spaces that are sent as objects."""

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode

from envpool_bridge.envs.closing import close_each
from envpool_bridge.envs.gymnasium_env import GymnasiumRows, MakeEnv
from envpool_bridge.envs.io.observation_writer import ObservationWriter
from envpool_bridge.envs.protocol import EnvRows, FirstRows, ResetRequest, StepRows
from envpool_bridge.envs.time_limits import TimeLimits
from envpool_bridge.envs.vector_requests import (
    ApplyRequest,
    MaskedReset,
    ObjectStep,
    RowFailure,
    RowReport,
    RowsFailedError,
    VectorRequest,
    describe_failure,
)
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree, take, write

Out = FirstRows | StepRows


@dataclasses.dataclass(frozen=True)
class VectorRowsSource:
    """Rows of one function each.

    Attributes:
        env_fns: one for each row.
        env_spec: spec of an environment; a placeholder leaf stands for a space that is sent as objects.
        spaces: (observation space, action space) that every row must have.
        same_observations: whether observation spaces must be equal; otherwise only of equal shape and dtype.
        autoreset_mode: reset at the step after an episode, in its last step, or on request.
        object_observations: whether observations are sent as objects.
        object_actions: whether actions are sent as objects.
        strict: see `OutputRules`; values that are not finite are accepted too if it is false.
    """

    env_fns: tuple[MakeEnv, ...]
    env_spec: EnvSpec
    spaces: tuple[gymnasium.Space, gymnasium.Space]
    same_observations: bool
    autoreset_mode: AutoresetMode
    object_observations: bool
    object_actions: bool
    strict: bool = False

    @property
    def make_env(self) -> MakeEnv:
        """Function of the first row, for messages."""
        return self.env_fns[0]

    @property
    def shares_final_observations(self) -> bool:
        """True if a row has a second observation in shared memory: the final one of its last episode."""
        return self.autoreset_mode is AutoresetMode.SAME_STEP and not self.object_observations

    def spec(self) -> EnvSpec:
        if not self.shares_final_observations:
            return self.env_spec
        observation = self.env_spec.observation
        return dataclasses.replace(self.env_spec, observation=(observation, observation))

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        del run_seed, keep_infos  # a vector environment has no run, and always returns infos
        envs: list[gymnasium.Env] = []
        failures: dict[int, RowFailure] = {}
        for row, row_id in enumerate(row_ids):
            try:
                env = self.env_fns[row_id]()
                self._validate_spaces(env)
                envs.append(env)
            except Exception as error:  # noqa: BLE001  raised by the constructor of the vector environment
                failures[row] = describe_failure(f"{self.env_spec.env_id}, row {row_id}, making the environment", error)
        if failures:
            with contextlib.suppress(Exception):  # the failures are reported
                close_each(envs)
            return FailedRows(len(row_ids), failures)
        return VectorRows(envs, self, row_ids)

    def _validate_spaces(self, env: gymnasium.Env) -> None:
        observation, action = self.spaces
        if self.same_observations:
            if env.observation_space != observation:
                raise RuntimeError(
                    f"the sub-environments observation spaces are not equivalent. They are {env.observation_space} and "
                    f"{observation}. If this is intentional, use `observation_mode='different'` instead."
                )
        elif not is_space_dtype_shape_equiv(env.observation_space, observation):
            raise RuntimeError(
                f"expected observation spaces of equal shape and dtype, got {env.observation_space} and {observation}: "
                "wrap the environments so that their observations can be batched"
            )
        if env.action_space != action:
            raise RuntimeError(
                f"expected equal action spaces, got {env.action_space} and {action}: wrap the environments so that "
                "their actions can be batched"
            )


class FailedRows:
    """Rows whose environments could not be made; implements `EnvRows`."""

    def __init__(self, num_rows: int, failures: dict[int, RowFailure]) -> None:
        self.num_rows = num_rows
        self.infos: list[Any] = [RowReport(failure=failures.get(row)) for row in range(num_rows)]

    def reset(self, request: ResetRequest, out: Out) -> None:
        del request
        out.is_first[...] = True

    def step(self, action: Tree, out: StepRows) -> None:
        del action
        out.mark_reset()

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """Returns at once: there are no values."""

    def close(self) -> None:
        """Returns at once: there are no environments."""


class VectorRows(GymnasiumRows):
    """Rows that answer every request of a vector environment.

    An exception of an environment does not end the worker. The other rows complete the request, and the row's report
    carries the exception. Their step functions are the environments' own until the first reset, which some
    environments do in their constructor.

    Args:
        envs: one for each row, owned by the rows.
        source: the source that made them.
        row_ids: ids of the rows.
    """

    _allows_nan = True

    def __init__(self, envs: Sequence[gymnasium.Env], source: VectorRowsSource, row_ids: Sequence[int]) -> None:
        self._mode, strict = source.autoreset_mode, source.strict  # the mode decides the time limits
        super().__init__(envs, source.env_spec, row_ids, None, keep_infos=True, strict=strict, clip_actions=False)
        self.infos: list[Any] = [{} for _ in envs]
        self._objects = _ObjectWriter(len(envs)) if source.object_observations else None
        if self._objects is not None:
            self._writer = self._objects
        self._object_actions: list[Any] | None = None
        self._shares_finals = source.shares_final_observations
        self._final_observation: Tree = None  # target of the final observations of a step
        if self._shares_finals:
            self._writer = _NewestWriter(source.env_spec, self._rules)
        self._step_functions: list[Callable[[Any], Any]] = [env.step for env in envs]

    def _make_limits(self, envs: Sequence[gymnasium.Env]) -> TimeLimits:
        return TimeLimits(envs, replace_wrappers=self._mode is not AutoresetMode.DISABLED)

    def reset(self, request: ResetRequest, out: Out) -> None:
        out.is_first[...] = True
        if isinstance(out, StepRows) and not isinstance(request, ObjectStep):
            out.mark_reset()
        try:
            self.infos = self._answer(request, out)
        except RowsFailedError as failed:
            self._report_failures(failed, out)
        if self._objects is not None and not isinstance(request, ObjectStep):
            self._add_objects()
        self._add_repairs()
        self._last_observation = out.observation

    def step(self, action: Tree, out: StepRows) -> None:
        if self._shares_finals:
            self._final_observation = out.observation[1]
        try:
            super().step(action, out)
        except RowsFailedError as failed:
            out.mark_reset()
            self._report_failures(failed, out)
            self._last_observation = out.observation
        if self._mode is not AutoresetMode.NEXT_STEP and self._ended_rows:
            if self._mode is AutoresetMode.SAME_STEP:
                for row in self._ended_rows:  # few: numpy's indexing takes longer
                    out.is_first[row] = True
            self._ended_rows = []
        if self._objects is not None:
            self._add_objects()

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        super().verify(observation, reward)
        if self._rules.news:
            self._add_repairs()

    def _answer(self, request: ResetRequest, out: Out) -> list[Any]:
        """Fulfils a request; returns one report for each row."""
        if isinstance(request, MaskedReset):
            return self._reset_selected(request, out)
        if isinstance(request, ObjectStep) and isinstance(out, StepRows):
            self._object_actions = cloudpickle.loads(request.actions)
            out.is_first[...] = False
            self.step(None, out)
            super().verify(take(out.observation, None), out.reward[None])
            return self.infos
        self._repeat_observation(out)
        if isinstance(request, ApplyRequest):
            return self._apply(request)
        if isinstance(request, VectorRequest):
            return [{} for _ in range(self.num_rows)]
        raise TypeError(f"expected a request of a vector environment, got {type(request).__name__}")

    def _reset_selected(self, request: MaskedReset, out: Out) -> list[Any]:
        rows = [row for row in range(self.num_rows) if not request.mask or request.mask[row]]
        observations: list[Any] = []
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_rows)]
        failures: dict[int, RowFailure] = {}
        for row in rows:
            options = cloudpickle.loads(request.pickled_options[row])
            try:
                observation, infos[row] = self._reset_row(row, request.seeds[row], options)
                observations.append(observation)
            except WorkerError as error:
                failures[row] = self._failure(row, "reset", error)
        if failures:
            raise RowsFailedError(failures)
        self._ended_rows = [row for row in self._ended_rows if row not in rows]
        for row in rows:
            self._step_functions[row] = self._limits.step_functions[row]
        self._repeat_observation(out)
        self._write_selected(rows, observations, out)
        return list(infos)

    def _write_selected(self, rows: list[int], observations: list[Any], out: Out) -> None:
        """Writes and validates the newest observations of some rows."""
        newest = out.observation[0] if self._shares_finals else out.observation
        self._writer.write_rows(rows, observations, newest, self._num_steps)
        if rows and self._objects is None:
            self._values.verify_rows(rows, newest, self._num_steps)

    def _env_actions(self, action: Tree) -> Sequence[Any]:
        if self._object_actions is not None:
            return self._object_actions
        # NaN is for the environment to judge: the caller's policy is its own.
        return self._actions.read(action)

    def _call_envs(self, actions: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        failures: dict[int, RowFailure] = {}
        try:
            self._add_results(results, actions)
        except BadEnvOutputError:
            raise
        except Exception as error:  # noqa: BLE001  reported with the row
            failures[len(results)] = self._failure(len(results), "step", error)
        if not failures:
            return results
        # An executor has started the steps of all rows already.
        for row in range(len(results) + 1, self.num_rows if self._concurrent is None else 0):
            try:
                self._step_functions[row](actions[row])
            except BadEnvOutputError:
                raise
            except Exception as error:  # noqa: BLE001  reported with the row
                failures[row] = self._failure(row, "step", error)
        raise RowsFailedError(failures)

    def _columns(self, results: list[Any], thorough: bool) -> tuple[Sequence[Any], ...]:
        observations, rewards, terminated, truncated, infos = super()._columns(results, thorough)
        if self._mode is AutoresetMode.SAME_STEP and (True in terminated or True in truncated):
            ends = terminated
            if True in truncated:
                ends = [either or other for either, other in zip(terminated, truncated, strict=True)]
            ended = list(itertools.compress(range(self.num_rows), ends))
            observations, infos = self._restart(ended, list(observations), list(infos))
        return observations, rewards, terminated, truncated, infos

    def _restart(self, ended: list[int], observations: list[Any], infos: list[Any]) -> tuple[list[Any], list[Any]]:
        """Starts episodes in the step that ended the ones before, whose last infos become infos.

        Their last observations become infos if they are objects. Otherwise they are written to shared memory before the
        resets, which may reuse their memory.
        """
        failures: dict[int, RowFailure] = {}
        for row in ended:
            if not isinstance(infos[row], dict):  # before that of the reset replaces it
                self._reject_info(row, infos[row])
        if self._shares_finals:
            last = [observations[row] for row in ended]
            self._writer.write_rows(ended, last, self._final_observation, self._num_steps)
            self._values.verify_rows(ended, self._final_observation, self._num_steps)
        for row in ended:
            ending = {"final_info": infos[row]} if infos[row] else {}
            if not self._shares_finals:
                ending = {"final_info": infos[row], "final_obs": copy.deepcopy(observations[row])}
            try:
                observations[row], info = self._reset_row(row, None, None)
                infos[row] = {**ending, **info} if ending else info
            except WorkerError as error:
                failures[row] = self._failure(row, "reset", error)
        if failures:
            raise RowsFailedError(failures)
        return observations, infos

    def _apply(self, request: ApplyRequest) -> list[RowReport]:
        """Calls a function with each environment, whose step may be another one afterwards."""
        results = [RowReport() for _ in range(self.num_rows)]
        failures: dict[int, RowFailure] = {}
        limits = self._limits
        for row, pickled in enumerate(request.functions):
            if not pickled:
                continue
            env, function = self._envs[row], cloudpickle.loads(pickled)
            is_replaced = self._step_functions[row] is limits.step_functions[row]
            limits.export_counts(row, self._num_steps)
            try:
                results[row] = RowReport(result=cloudpickle.dumps(function(env)))
            except Exception as error:  # noqa: BLE001  reported with the row
                failures[row] = self._failure(row, request.what, error)
            limits.import_counts(row, self._num_steps)
            self._step_functions[row] = limits.step_functions[row] if is_replaced else env.step
        if failures:
            raise RowsFailedError(failures)
        return results

    def _repeat_observation(self, out: Out) -> None:
        if self._last_observation is not None:
            write(out.observation, self._last_observation)

    def _add_objects(self) -> None:
        objects = self._objects.newest if self._objects is not None else []
        for row, info in enumerate(self.infos):
            report = info if isinstance(info, RowReport) else RowReport(info)
            self.infos[row] = dataclasses.replace(report, observation=objects[row])

    def _add_repairs(self) -> None:
        """Adds the number of repaired outputs to the infos of rows in which it has grown."""
        for row in self._rules.news:
            report, repaired = self.infos[row], {"repaired": self._rules.repaired[row]}
            is_report = isinstance(report, RowReport)
            info = {**(report.info if is_report else report), **repaired}
            self.infos[row] = dataclasses.replace(report, info=info) if is_report else info
        self._rules.news.clear()

    def _report_failures(self, failed: RowsFailedError, out: Out) -> None:
        self._repeat_observation(out)
        self.infos = [RowReport(failure=failed.failures.get(row)) for row in range(self.num_rows)]

    def _failure(self, row: int, what: str, error: Exception) -> RowFailure:
        # `_reset_row` raises a WorkerError from the environment's own exception.
        cause = error.__cause__ if isinstance(error, WorkerError) else None
        original = cause if isinstance(cause, Exception) else error
        place = f"{self._spec.env_id}, row {self._row_ids[row]}, {what} {self._num_steps}"
        return describe_failure(place, original)


class _NewestWriter(ObservationWriter):
    """Writer of the first observation of a pair: the newest one; the second is the final one of the last episode."""

    def write(self, observations: Sequence[Any], out: Tree, step: int, thorough: bool) -> None:
        super().write(observations, out[0], step, thorough)


class _ObjectWriter(ObservationWriter):
    """Writer of observations that stay objects; the arrays hold a placeholder."""

    def __init__(self, num_rows: int) -> None:
        self.newest: list[Any] = [None] * num_rows

    def write(self, observations: Sequence[Any], out: Tree, step: int, thorough: bool) -> None:
        del out, step, thorough
        self.newest = list(observations)

    def write_rows(self, rows: Sequence[int], observations: Sequence[Any], out: Tree, step: int) -> None:
        del out, step
        for row, observation in zip(rows, observations, strict=True):
            self.newest[row] = observation
