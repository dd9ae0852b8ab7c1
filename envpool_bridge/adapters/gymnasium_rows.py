"""Rows of ordinary Gymnasium environments, one object each, stepped in a loop."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np

from envpool_bridge.adapters import validation
from envpool_bridge.adapters.rows import EpisodeReset, FirstRows, GymnasiumReset, ResetRequest, StepRows
from envpool_bridge.adapters.seeding import EpisodeSeeds
from envpool_bridge.adapters.spaces import env_spec
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from envpool_bridge.specs import DiscreteSpec, EnvSpec

# Looked up at every step.
_NUMBERS = validation.NUMBERS
_ARRAY = frozenset({np.ndarray})
_shape_of, _dtype_of = attrgetter("shape"), attrgetter("dtype")
_SMALL = 64  # elements of an observation up to which one assignment of the whole list beats a loop of copies

MakeEnv = Callable[[], gymnasium.Env]


@dataclasses.dataclass(frozen=True)
class GymnasiumSource:
    """Rows of `make_env()`.

    Attributes:
        make_env: makes one environment; defined at the top level of a module, so that workers can find it.
        env_id: name for messages; "" takes the environment's own.
        action_repeat: emulator frames per env step.
        check_range: whether observations must lie within the declared bounds.
        clip_actions: whether continuous actions are clipped to the space's bounds, as Gaussian policies expect.
    """

    make_env: MakeEnv
    env_id: str = ""
    action_repeat: int = 1
    check_range: bool = True
    clip_actions: bool = True

    def spec(self) -> EnvSpec:
        """What a row looks like; makes one environment and closes it."""
        env = self.make_env()
        try:
            return env_spec(env, self._name(env), self.action_repeat)
        finally:
            env.close()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> "GymnasiumRows":
        """Rows of these ids."""
        envs = [self.make_env() for _ in row_ids]
        spec = env_spec(envs[0], self._name(envs[0]), self.action_repeat)
        return GymnasiumRows(envs, spec, row_ids, run_seed, keep_infos, self.check_range, self.clip_actions)

    def _name(self, env: gymnasium.Env) -> str:
        return self.env_id or (env.spec.id if env.spec is not None else type(env.unwrapped).__name__)


class GymnasiumRows:
    """Keeps the protocol `EnvRows`."""

    def __init__(
        self,
        envs: Sequence[gymnasium.Env],
        spec: EnvSpec,
        row_ids: Sequence[int],
        run_seed: int | None,
        keep_infos: bool,
        check_range: bool,
        clip_actions: bool = True,
    ) -> None:
        """Takes over `envs`, one a row."""
        self.num_rows = len(envs)
        self.infos: list[dict[str, Any]] = []
        self._envs = list(envs)
        self._step_functions = [env.step for env in envs]
        self._all_step_functions = list(self._step_functions)
        self._reset_functions = [partial(self._autoreset, row) for row in range(self.num_rows)]
        self._spec = spec
        self._row_ids = list(row_ids)
        self._seeds = None if run_seed is None else [EpisodeSeeds(run_seed, row) for row in row_ids]
        self._keep_infos = keep_infos
        self._check = validation.ObservationCheck(spec.observation, check_range)
        observation = spec.observation
        self._source_dtype = None if isinstance(observation, DiscreteSpec) else np.dtype(observation.source_dtype)
        self._episodes = [0] * self.num_rows
        self._ended_rows: list[int] = []  # rows that the next step resets
        self._num_steps = 0
        action = spec.action
        self._action_low = self._action_high = None
        if clip_actions and not isinstance(action, DiscreteSpec):
            self._action_low, self._action_high = action.bound("low"), action.bound("high")

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Begins or replays episodes in all rows; see the protocol."""
        observations: list[Any] = []
        infos: list[dict[str, Any]] = []
        ended_rows: list[int] = []
        for row in range(self.num_rows):
            if isinstance(request, GymnasiumReset):
                result = self._reset_row(row, request.seeds[row], request.options)
                ended = False
            else:
                result, ended = self._replay(row, request)
            if ended:
                ended_rows.append(row)
            observations.append(result[0])
            infos.append(result[1])
        self._ended_rows = ended_rows
        self._write(observations, out.observation)
        out.is_first[...] = True
        if isinstance(request, EpisodeReset):
            out.is_first[...] = [actions is None or len(actions) == 0 for actions in request.actions]
        if isinstance(out, StepRows):
            out.reward.fill(0.0)
            out.terminated.fill(False)
            out.truncated.fill(False)
            out.valid.fill(False)
        if self._keep_infos:
            self.infos = infos

    def step(self, action: np.ndarray, out: StepRows) -> None:
        """Steps every row, resetting those whose episode ended at the step before; see the protocol.

        The pool's speed rests on this loop. Rows that must reset have their function swapped instead of being asked for at
        every row; types are checked by identity, with everything unusual looked at apart; and finiteness, range and rewards
        are checked for all rows at once.
        """
        self._num_steps += 1
        resets = self._ended_rows
        for row in resets:
            self._step_functions[row] = self._reset_functions[row]
        keep_infos = self._keep_infos
        observations: list[Any] = []
        rewards: list[Any] = []
        infos: list[Any] = []
        ends: list[tuple[int, Any, Any]] = []
        try:
            for step, given in zip(self._step_functions, self._env_actions(action), strict=True):
                observation, reward, terminated, truncated, info = step(given)
                observations.append(observation)
                rewards.append(reward)
                if terminated is not False or truncated is not False:
                    ends.append((len(rewards) - 1, terminated, truncated))
                if keep_infos:
                    infos.append(info)
        except (WorkerError, BadEnvOutputError):
            raise
        except Exception as error:
            raise self._raised(len(rewards), "step", error) from error
        self._write(observations, out.observation)
        self._write_rewards(rewards, out.reward)
        self._write_flags(ends, resets, out)
        if keep_infos:
            self._require_infos(infos)

    def _write_rewards(self, rewards: list[Any], out: np.ndarray) -> None:
        usual = _NUMBERS.issuperset(map(type, rewards))
        if usual:
            out[...] = rewards
        if not usual or np.count_nonzero(np.isfinite(out)) != self.num_rows:
            for row, reward in enumerate(rewards):
                self._require(row, "reward", validation.reward_error(reward))
            out[...] = rewards

    def _write_flags(self, ends: list[tuple[int, Any, Any]], resets: list[int], out: StepRows) -> None:
        out.valid.fill(True)
        out.is_first.fill(False)
        out.terminated.fill(False)
        out.truncated.fill(False)
        for row in resets:
            out.valid[row] = False
            out.is_first[row] = True
            self._step_functions[row] = self._all_step_functions[row]
        self._ended_rows = []
        for row, terminated, truncated in ends:
            if type(terminated) is not bool or type(truncated) is not bool:
                self._require(row, "terminated", validation.flag_error(terminated))
                self._require(row, "truncated", validation.flag_error(truncated))
            if terminated or truncated:
                out.terminated[row] = terminated
                out.truncated[row] = truncated
                self._ended_rows.append(row)

    def _require_infos(self, infos: list[Any]) -> None:
        for row, info in enumerate(infos):
            if not isinstance(info, dict):
                self._require(row, "info", f"expected a dict, got {validation.describe(info)}")
        self.infos = infos

    def close(self) -> None:
        """Closes the environments; idempotent."""
        for env in self._envs:
            env.close()
        self._envs = []

    def _env_actions(self, action: np.ndarray) -> list[Any]:
        spec = self._spec.action
        if isinstance(spec, DiscreteSpec):
            return (action + spec.start if spec.start else action).tolist()
        if not np.isfinite(action).all():
            row = int(np.argwhere(~np.isfinite(action))[0][0])
            raise WorkerError(
                f"{self._spec.env_id}, row {self._row_ids[row]}, step {self._num_steps}: the policy's action is not finite: "
                f"{action[row]}; the parameters have probably diverged (lower the learning rate)"
            )
        # What the space does not allow is clipped to it, as the field's Gaussian policies expect.
        given = action.astype(spec.source_dtype)
        if self._action_low is not None or self._action_high is not None:
            np.clip(given, self._action_low, self._action_high, out=given)
        return list(given)

    def _write(self, observations: list[Any], out: np.ndarray) -> None:
        """Writes [R, ...] observations, refusing what the space does not allow."""
        if not self._all_usual(observations):
            observations = [self._stored(row, observation) for row, observation in enumerate(observations)]
        if out.size <= _SMALL * self.num_rows:
            out[...] = observations
        else:
            for row, observation in enumerate(observations):
                out[row] = observation
        problem = self._check.rows(out)
        if problem is not None:
            self._require(problem[0], "observation", problem[1])

    def _all_usual(self, observations: list[Any]) -> bool:
        """Whether all are plain arrays of the right shape and dtype; by C-level maps, which cost a third of a loop."""
        if not _ARRAY.issuperset(map(type, observations)):
            return False
        count = self.num_rows
        shapes, dtypes = map(_shape_of, observations), map(_dtype_of, observations)
        return (
            list(shapes).count(self._spec.observation.shape) == count
            and list(dtypes).count(self._source_dtype) == count
        )

    def _stored(self, row: int, observation: Any) -> Any:
        """The observation as it may be written, or a refusal that names the row."""
        self._require(row, "observation", self._check.one(observation))
        spec = self._spec.observation
        return int(observation) - spec.start if isinstance(spec, DiscreteSpec) else observation

    def _require(self, row: int, field: str, problem: str | None) -> None:
        if problem is not None:
            validation.refuse(self._spec.env_id, self._row_ids[row], self._num_steps, field, problem)

    def _autoreset(self, row: int, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Stands in for the row's step function; the action is ignored."""
        del action
        self._episodes[row] += 1
        seed = None if self._seeds is None else self._seeds[row].seed(self._episodes[row])
        observation, info = self._reset_row(row, seed, None)
        return observation, 0.0, False, False, info

    def _reset_row(self, row: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        try:
            result = self._envs[row].reset(seed=seed, options=options)
        except Exception as error:
            raise self._raised(row, "reset", error) from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            self._require(row, "reset result", f"expected (observation, info), got {validation.describe(result)}")
        return result

    def _replay(self, row: int, request: EpisodeReset) -> tuple[tuple[Any, dict[str, Any]], bool]:
        """Plays the episode again up to where it was; returns its newest (observation, info) and whether it ended."""
        if self._seeds is None:
            raise ValueError("an EpisodeReset needs rows that were made with a run_seed")
        self._episodes[row] = request.episodes[row]
        observation, info = self._reset_row(row, self._seeds[row].seed(self._episodes[row]), None)
        actions = request.actions[row]
        terminated = truncated = False
        for action in () if actions is None else self._env_actions(actions):
            try:
                observation, _, terminated, truncated, info = self._envs[row].step(action)
            except Exception as error:
                raise self._raised(row, "step (replayed after a resume)", error) from error
        return (observation, info), bool(terminated or truncated)

    def _raised(self, row: int, what: str, error: Exception) -> WorkerError:
        return WorkerError(
            f"{self._spec.env_id}, row {self._row_ids[row]}, {what} {self._num_steps}: {type(error).__name__}: {error}"
        )
