"""Rows of ordinary Gymnasium environments, one object each, stepped in a loop or concurrently (`ConcurrentStep`)."""

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import call
from typing import Any, NoReturn

import gymnasium
import numpy as np

from envpool_bridge.envs.closing import close_each, closed_on_error
from envpool_bridge.envs.concurrent_step import make_concurrent_step
from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.action_reader import ActionReader
from envpool_bridge.envs.io.info_fields import write_infos
from envpool_bridge.envs.io.observation_writer import ObservationWriter
from envpool_bridge.envs.io.output_rules import OutputRules
from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.envs.one_by_one import OneByOneSource
from envpool_bridge.envs.protocol import (
    EpisodeReset,
    FirstRows,
    GymnasiumReset,
    ResetRequest,
    StepRows,
    initial_stage,
    reset_arguments,
)
from envpool_bridge.envs.seeding import EpisodeSeeds, first_episode_steps
from envpool_bridge.envs.time_limits import NEVER, TimeLimits, has_time_limit
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from envpool_bridge.spec.specs import EnvSpec, num_frames, with_frames
from envpool_bridge.spec.tree import Tree, leaves, take

# Module variables: accessed at every step.
_NUMBERS = validation.NUMBERS
_BOOLS = validation.BOOLS
_call: Callable[..., Any] = call
_THOROUGH_EVERY = 16  # steps between exact checks of types; see `_require_forms`

MakeEnv = Callable[[], gymnasium.Env]


@dataclasses.dataclass(frozen=True)
class GymnasiumSource(OneByOneSource):
    """Rows of `make_env()`.

    Attributes:
        make_env: makes one environment; any callable that cloudpickle can send to workers.
        env_id: name for messages; "" takes the environment's own.
        action_repeat: steps of the environment, or frames of its emulator, per env step.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.
        clip_actions: whether continuous actions are clipped to the space's bounds, as is usual with Gaussian policies.
        keep_64_bits: store 64-bit observations, actions and rewards unchanged; jax reads 32 bits.
        frame_stack: number of newest values of every Box that agents see at once; each is stored once.
        info_fields: numbers in the infos to record; see EnvSpec.
        overlap_rows: steps rows concurrently in threads, for environments that wait rather than compute
            (`ThreadedStep`). Environments with `step_async` and `step_wait` need no threads, and ignore it
            (`AsyncStep`).
        stage: integer that the environments receive with every reset at first, as the option "stage"; None for none.
        levels: number of levels, each the seed of its episodes, or their stage where there is one; see EnvSpec. 0 for none.
        stagger: longest first episode, in env steps: the first episodes are truncated after different numbers of steps;
            0 leaves them whole.
        evaluation_env: makes one environment for evaluation, where training changes its episodes or rewards.
    """

    make_env: MakeEnv
    env_id: str = ""
    action_repeat: int = 1
    strict: bool = True
    clip_actions: bool = True
    keep_64_bits: bool = False
    frame_stack: int = 1
    info_fields: tuple[str, ...] = ()
    overlap_rows: bool = False
    stage: int | None = None
    levels: int = 0
    stagger: int = 0
    evaluation_env: MakeEnv | None = None

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> "GymnasiumRows":
        """Makes the rows of these ids."""
        with closed_on_error() as envs:
            envs.extend(self.make_env() for _ in row_ids)  # adds one after another
            spec, settings = self._spec(envs[0]), (self.strict, self.clip_actions, self.overlap_rows)
            rows = GymnasiumRows(envs, spec, row_ids, run_seed, keep_infos, *settings)
        if self.stagger and run_seed is not None:
            rows.first_limits = [first_episode_steps(run_seed, row, self.stagger) for row in row_ids]
        return rows

    def _spec(self, env: gymnasium.Env) -> EnvSpec:
        name = self.env_id or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)
        spaces = env.observation_space, env.action_space
        spec = with_frames(spec_of_spaces(*spaces, name, self.action_repeat, self.keep_64_bits), self.frame_stack)
        given = {"info_fields": tuple(self.info_fields), "stage": self.stage, "levels": self.levels}
        return dataclasses.replace(spec, **given, has_time_limit=has_time_limit(env))


class GymnasiumRows:
    """Rows with one environment object each; implements `EnvRows`.

    Args:
        envs: one for each row, owned by the rows.
        spec: spec of a row.
        row_ids: ids of the rows.
        run_seed: seed of the run, or None for Gymnasium's own seeding.
        keep_infos: whether to keep the infos of each step.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.
        clip_actions: whether continuous actions are clipped to the space's bounds.
        overlap_rows: Overlap rows, as in GymnasiumSource.

    Attributes:
        read_stage: Function that reads the stage, as in StagedRows.
        first_limits: env steps after which the rows' first episodes are truncated; empty if they are whole.
        num_episodes: episodes after which each row rests; empty if none does. A resting row's steps cost nothing: they repeat
            the observation of its last reset. Rows that step concurrently do not rest.
    """

    _allows_nan = False  # where `strict` is false

    def __init__(
        self,
        envs: Sequence[gymnasium.Env],
        spec: EnvSpec,
        row_ids: Sequence[int],
        run_seed: int | None,
        keep_infos: bool,
        strict: bool,
        clip_actions: bool = True,
        overlap_rows: bool = False,
    ) -> None:
        self.num_rows = len(envs)
        self.infos: list[dict[str, Any]] = []
        self._envs = list(envs)
        self._limits = self._make_limits(envs)
        self._step_functions = list(self._limits.step_functions)
        self._reset_functions: list[Callable[[Any], Any]] = [
            partial(self._autoreset, row) for row in range(self.num_rows)
        ]
        self._spec = spec
        self._row_ids = list(row_ids)
        self._seeds = None if run_seed is None else [EpisodeSeeds(run_seed, row) for row in row_ids]
        self.read_stage: Callable[[int], int | None] = lambda row: initial_stage(spec)
        self.first_limits: list[int] = []
        self.num_episodes: Sequence[int] = ()
        inner, steps, core = self._limits.inner, self._limits.step_functions, row_ids[0] // len(envs)
        self._concurrent = make_concurrent_step(inner, steps, overlap_rows, core)
        self._call_all: Callable[..., Iterable[Any]] = self._concurrent or partial(map, _call)
        self._keep_infos = keep_infos
        self._rules = OutputRules(spec.env_id, row_ids, strict, self._allows_nan)
        self._writer = ObservationWriter(spec, self._rules)
        self._values = validation.ValueCheck(spec, self._rules)
        self._actions = ActionReader(spec.action, clip_actions)
        self._num_frames = num_frames(spec)
        self._last_observation: Tree = None  # [R, ...] a leaf, the policy's present input
        self._episodes = [0] * self.num_rows
        self._ended_rows: list[int] = []  # rows that the next step resets
        self._num_steps = 0
        self._thorough_every = 1 if keep_infos else _THOROUGH_EVERY

    def _make_limits(self, envs: Sequence[gymnasium.Env]) -> TimeLimits:
        return TimeLimits(envs)

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        observations: list[Any] = []
        infos: list[dict[str, Any]] = []
        self._ended_rows = []
        out.is_first[...] = True
        for row in range(self.num_rows):
            if isinstance(request, GymnasiumReset):
                observation, info = self._reset_row(row, seed=request.seeds[row], options=request.options)
            else:
                observation, info = self._replay(row, request, out)
            observations.append(observation)
            infos.append(info)
        self._writer.write(observations, out.observation, self._num_steps, thorough=True)
        self._values.verify(take(out.observation, None), None, self._num_steps)
        self._last_observation = out.observation
        if isinstance(out, StepRows):
            out.mark_reset()
        if self._keep_infos:
            self.infos = list(infos)

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every row, resetting those whose episode ended at the previous step; see the protocol.

        The pool's speed depends on this method. One loop in C steps the rows, and rows that must reset have their
        function swapped instead of a test for each row. Results are validated and written column by column.
        """
        functions, resets = self._step_functions, self._ended_rows
        for row in resets:
            functions[row] = self._reset_functions[row]
        actions = self._env_actions(action)
        self._num_steps += 1
        thorough = self._thorough_every == 1 or self._num_steps % self._thorough_every == 1
        observations, rewards, terminated, truncated, infos = self._columns(self._call_envs(actions), thorough)
        self._writer.write(observations, out.observation, self._num_steps, thorough)
        self._last_observation = out.observation
        try:
            with np.errstate(over="ignore"):  # becomes infinite, which `verify` rejects
                out.reward[...] = rewards
        except (OverflowError, TypeError, ValueError):
            out.reward[...] = self._plain_rewards(rewards)
        for row in resets:
            out.valid[row] = False
            out.is_first[row] = True
            functions[row] = self._limits.step_functions[row]
        self._ended_rows = []
        self._write_ends("terminated", terminated, out.terminated)
        self._write_ends("truncated", truncated, out.truncated)
        if self._keep_infos or out.infos:
            self._require_infos(infos)
            write_infos(self._spec.env_id, self._row_ids, self._num_steps, infos, out)

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        self._values.verify(observation, reward, self._num_steps)

    def _rest(self, row: int) -> None:
        """Lets a row rest from its next reset."""

        def begin(action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            result = self._autoreset(row, action)
            self._limits.begin(row, self._num_steps, NEVER)
            self._limits.step_functions[row] = lambda action: result
            return result

        self._reset_functions[row] = begin

    def _call_envs(self, actions: Sequence[Any]) -> list[Any]:
        """Steps or resets every row; returns the rows' results."""
        results: list[Any] = []
        try:
            self._add_results(results, actions)
        except (WorkerError, BadEnvOutputError):
            raise
        except Exception as error:
            half = self._concurrent.failed_call if self._concurrent is not None else ""
            what = f"{half} of step" if half else "step"
            raise self._raised(len(results), what, error) from error
        return results

    def _add_results(self, results: list[Any], actions: Sequence[Any]) -> None:
        """Adds the rows' results to an empty list. After an exception it holds those of the rows before the failed one."""
        results.extend(self._call_all(self._step_functions, actions))
        if len(results) < self.num_rows:  # a list takes a row's StopIteration for the end of what it is extended by
            raise StopIteration("raised by the environment, as by next() at the end of its data")

    def _columns(self, results: list[Any], thorough: bool) -> tuple[Any, ...]:
        """Returns observations, rewards, terminations, truncations and infos of all rows, truncated at the time limits.

        Rewards are numbers and flags bools if `thorough`: at the first step, at some of the later ones, and at all of them
        after one of another form. Between them a 1 returned for True is recorded as True. Values that numpy cannot
        convert to a number or a flag are treated immediately.
        """
        try:
            observations, rewards, terminated, truncated, infos = zip(*results, strict=True)
        except (TypeError, ValueError):
            for row, result in enumerate(results):
                if not (isinstance(result, tuple) and len(result) == 5):
                    expected = "expected (observation, reward, terminated, truncated, info)"
                    self._reject(row, "step result", f"{expected}, got {validation.describe(result)}")
            raise
        if thorough:
            if not _NUMBERS.issuperset(map(type, rewards)):
                rewards = self._plain_rewards(rewards)
            terminated = self._plain_flags("terminated", terminated)
            truncated = self._plain_flags("truncated", truncated)
        return observations, rewards, terminated, self._limits.truncate(truncated, self._num_steps), infos

    def _plain_rewards(self, rewards: Sequence[Any]) -> list[Any]:
        self._thorough_every = 1
        dtype, rules = self._spec.reward_dtype, self._rules
        return [validation.plain_reward(rules, row, self._num_steps, one, dtype) for row, one in enumerate(rewards)]

    def _plain_flags(self, field: str, flags: tuple[Any, ...]) -> tuple[Any, ...]:
        if _BOOLS.issuperset(map(type, flags)):
            return flags
        self._thorough_every = 1
        rules, step = self._rules, self._num_steps
        return tuple(validation.plain_flag(rules, row, step, field, one) for row, one in enumerate(flags))

    def _write_ends(self, field: str, flags: tuple[Any, ...], out: np.ndarray) -> None:
        """Writes the flags that are true, and marks their rows for a reset in the next step."""
        num_true = self.num_rows - flags.count(False)
        if num_true and flags.count(True) != num_true:
            flags = self._plain_flags(field, flags)
            num_true = flags.count(True)
        row = -1
        for _ in range(num_true):
            row = flags.index(True, row + 1)
            out[row] = True
            self._ended_rows.append(row)
            has_played = self.num_episodes and self._episodes[row] + 1 >= self.num_episodes[row]
            if has_played and self._concurrent is None:
                self._rest(row)

    def _require_infos(self, infos: Sequence[Any]) -> None:
        for row, info in enumerate(infos):
            if not isinstance(info, dict):
                self._reject_info(row, info)
        self.infos = list(infos)

    def _reject_info(self, row: int, info: Any) -> None:
        self._reject(row, "info", f"expected a dict, got {validation.describe(info)}")

    def close(self) -> None:
        """Closes the environments; idempotent. Raises the first exception of one after all have been closed."""
        envs, self._envs = self._envs, []
        close_each(envs if self._concurrent is None else [self._concurrent, *envs])

    def _env_actions(self, action: Tree) -> Sequence[Any]:
        """Returns actions in the form of the space's own `sample`."""
        not_finite = self._actions.first_not_finite(action)
        if not_finite is not None:
            if self._last_observation is not None:  # the observation may be the cause
                self._values.verify(take(self._last_observation, None), None, self._num_steps)
            row, description = not_finite
            raise WorkerError(
                f"{self._spec.env_id}, row {self._row_ids[row]}, step {self._num_steps + 1}: the policy's action is not "
                f"finite: {description}; the parameters have probably diverged (lower the learning rate)"
            )
        return self._actions.read(action)

    def _reject(self, row: int, field: str, problem: str) -> NoReturn:
        self._rules.reject(row, self._num_steps, field, problem)

    def _autoreset(self, row: int, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Resets the row in place of its step function; the action is ignored."""
        del action
        self._episodes[row] += 1
        seed = None if self._seeds is None else self._seeds[row].seed(self._episodes[row])
        observation, info = self._reset_row(row, **reset_arguments(self._spec, seed, self.read_stage(row)))
        return observation, 0.0, False, False, info

    def _reset_row(self, row: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        try:
            result = self._envs[row].reset(seed=seed, options=options)
        except Exception as error:
            raise self._raised(row, "reset", error) from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            self._reject(row, "reset result", f"expected (observation, info), got {validation.describe(result)}")
        self._begin(row, self._num_steps)
        self._step_functions[row] = self._limits.read_step(row)
        return result

    def _begin(self, row: int, num_steps: int) -> int:
        """Starts the count of the row's episode after `num_steps` steps; returns its limit."""
        limit = self._limits.limits[row]
        if self.first_limits and not self._episodes[row]:
            limit = min(limit, self.first_limits[row])
        self._limits.begin(row, num_steps, limit)
        return limit

    def _replay(self, row: int, request: EpisodeReset, out: FirstRows | StepRows) -> tuple[Any, dict[str, Any]]:
        """Replays the started episode up to its saved step; returns its newest (observation, info)."""
        if self._seeds is None:
            raise ValueError("an EpisodeReset needs rows that were made with a run_seed")
        self._episodes[row] = request.episodes[row]
        stage = request.stages[row] if request.stages else self.read_stage(row)
        seed = self._seeds[row].seed(self._episodes[row])
        observation, info = self._reset_row(row, **reset_arguments(self._spec, seed, stage))
        actions = request.actions[row]
        if actions is None or len(leaves(actions)[0]) == 0:
            return observation, info
        keeps = self._num_frames > 1
        newest = deque([copy.deepcopy(observation)] * self._num_frames if keeps else (), maxlen=self._num_frames)
        terminated = truncated = False
        replayed = self._env_actions(actions)
        for action in replayed:
            request.on_step()
            try:
                observation, _, terminated, truncated, info = self._limits.step_functions[row](action)
            except Exception as error:
                raise self._raised(row, "step (replayed after a resume)", error) from error
            if keeps:
                newest.append(copy.deepcopy(observation))  # an environment may reuse its array
        out.is_first[row] = False
        limit = self._begin(row, self._num_steps - len(replayed))
        if terminated or truncated or len(replayed) >= limit:
            self._ended_rows.append(row)
        if isinstance(out, FirstRows) and out.history is not None:
            for age in range(1, self._num_frames):
                self._writer.write_history(age, [newest[-1 - age]], [row], out.history)
        return observation, info

    def _raised(self, row: int, what: str, error: Exception) -> WorkerError:
        return WorkerError(
            f"{self._spec.env_id}, row {self._row_ids[row]}, {what} {self._num_steps}: {type(error).__name__}: {error}"
        )
