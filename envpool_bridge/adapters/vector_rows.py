"""Rows of one of Gymnasium's own vector environments, stepped by a single call."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from envpool_bridge.adapters import validation
from envpool_bridge.adapters.rows import EpisodeReset, FirstRows, GymnasiumReset, ResetRequest, StepRows
from envpool_bridge.adapters.seeding import episode_seed
from envpool_bridge.adapters.spaces import spec_of_spaces
from envpool_bridge.errors import UserError, WorkerError
from envpool_bridge.specs import DiscreteSpec, EnvSpec

MakeVectorEnv = Callable[[int], VectorEnv]


@dataclasses.dataclass(frozen=True)
class VectorSource:
    """Rows of `make_vector_env(num_envs)`, which must reset in NEXT_STEP mode (Gymnasium's default).

    A native vector environment seeds its own later episodes, so a resumed run begins new episodes instead of continuing
    the old ones to the bit.
    """

    make_vector_env: MakeVectorEnv
    env_id: str = ""
    action_repeat: int = 1
    check_range: bool = True

    def spec(self) -> EnvSpec:
        """What a row looks like; makes a vector of one and closes it."""
        env = self.make_vector_env(1)
        try:
            return self._spec(env)
        finally:
            env.close()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> "VectorRows":
        """Rows of these ids."""
        env = self.make_vector_env(len(row_ids))
        return VectorRows(env, self._spec(env), row_ids, run_seed, keep_infos, self.check_range)

    def _spec(self, env: VectorEnv) -> EnvSpec:
        env_id = self.env_id or (env.spec.id if env.spec is not None else type(env).__name__)
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.NEXT_STEP:
            raise UserError(
                f"{env_id}: expected a vector environment with autoreset_mode NEXT_STEP, got {mode}: "
                f"pass autoreset_mode=AutoresetMode.NEXT_STEP when making it"
            )
        return spec_of_spaces(env.single_observation_space, env.single_action_space, env_id, self.action_repeat)


class VectorRows:
    """Keeps the protocol `EnvRows`."""

    def __init__(
        self,
        env: VectorEnv,
        spec: EnvSpec,
        row_ids: Sequence[int],
        run_seed: int | None,
        keep_infos: bool,
        check_range: bool,
    ) -> None:
        """Takes over `env`."""
        self.num_rows = env.num_envs
        self.infos: list[dict[str, Any]] = []
        self._env = env
        self._spec = spec
        self._row_ids = list(row_ids)
        self._run_seed = run_seed
        self._keep_infos = keep_infos
        self._form = validation.ObservationForm(spec.observation)
        self._values = validation.ValueCheck(spec, self._row_ids, check_range)
        self._ended = np.zeros(self.num_rows, bool)
        self._num_steps = 0
        self._closed = False

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Begins new episodes in all rows (an EpisodeReset too: see VectorSource)."""
        options = request.options if isinstance(request, GymnasiumReset) else None
        try:
            observation, infos = self._env.reset(seed=self._seed(request), options=options)
        except Exception as error:
            raise self._failure("reset", error) from error
        self._ended[...] = False
        self._write_observation(observation, out.observation)
        self._values.verify(out.observation[None], None, self._num_steps)
        out.is_first.fill(True)
        if isinstance(out, StepRows):
            out.mark_reset()
        if self._keep_infos:
            self.infos = _rows_of(infos, self.num_rows)

    def step(self, action: np.ndarray, out: StepRows) -> None:
        """One call of the vector environment, written into the rows."""
        spec = self._spec.action
        if isinstance(spec, DiscreteSpec):
            given = action + np.asarray(spec.start, self._env.single_action_space.dtype)
        else:
            given = np.clip(action, spec.bound("low"), spec.bound("high")).astype(spec.source_dtype)
        self._num_steps += 1
        try:
            observation, reward, terminated, truncated, infos = self._env.step(given)
        except Exception as error:
            raise self._failure("step", error) from error
        self._write_observation(observation, out.observation)
        for field, values, kinds in (
            ("reward", reward, "fiu"),
            ("terminated", terminated, "b"),
            ("truncated", truncated, "b"),
        ):
            good = isinstance(values, np.ndarray) and values.shape == (self.num_rows,) and values.dtype.kind in kinds
            if not good:
                problem = f"expected an array of shape ({self.num_rows},), got {validation.describe(values)}"
                validation.refuse(self._spec.env_id, self._row_ids[0], self._num_steps, field, problem)
        out.reward[...] = reward
        out.terminated[...] = terminated
        out.truncated[...] = truncated
        np.logical_not(self._ended, out=out.valid)
        out.is_first[...] = self._ended
        np.logical_or(terminated, truncated, out=self._ended)
        if self._keep_infos:
            self.infos = _rows_of(infos, self.num_rows)

    def verify(self, observation: np.ndarray, reward: np.ndarray) -> None:
        """Refuses values of the last steps; see the protocol."""
        self._values.verify(observation, reward, self._num_steps)

    def close(self) -> None:
        """Closes the vector environment; idempotent."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _seed(self, request: ResetRequest) -> Any:
        """One seed for the vector where that says the same: native implementations take no list."""
        if isinstance(request, EpisodeReset):
            if self._run_seed is None:
                return None
            return episode_seed(self._run_seed, self._row_ids[0], request.episodes[0])
        first = request.seeds[0]
        if first is None or request.seeds == tuple(range(first, first + self.num_rows)):
            return first
        return list(request.seeds)

    def _write_observation(self, observation: Any, out: np.ndarray) -> None:
        spec = self._spec.observation
        shape = (self.num_rows, *spec.shape)
        if not isinstance(observation, np.ndarray) or observation.shape != shape:
            problem = f"expected an array of shape {shape}, got {validation.describe(observation)}"
            validation.refuse(self._spec.env_id, self._row_ids[0], self._num_steps, "observation", problem)
        if isinstance(spec, DiscreteSpec):
            for row, value in enumerate(observation):
                self._require(row, self._form.problem(value))
            out[...] = observation - spec.start
            return
        if observation.dtype != spec.source_dtype:
            problem = f"expected dtype {spec.source_dtype}, got {observation.dtype}"
            validation.refuse(self._spec.env_id, self._row_ids[0], self._num_steps, "observation", problem)
        out[...] = observation

    def _require(self, row: int, problem: str | None) -> None:
        if problem is not None:
            validation.refuse(self._spec.env_id, self._row_ids[row], self._num_steps, "observation", problem)

    def _failure(self, what: str, error: Exception) -> WorkerError:
        rows = f"rows {self._row_ids[0]} to {self._row_ids[-1]}"
        return WorkerError(f"{self._spec.env_id}, {rows}, {what} {self._num_steps}: {type(error).__name__}: {error}")


def _rows_of(infos: dict[str, Any], num_rows: int) -> list[dict[str, Any]]:
    """Gymnasium's vector infos as one dict a row: the inverse of `VectorEnv._add_info`."""
    rows: list[dict[str, Any]] = [{} for _ in range(num_rows)]
    for name, values in infos.items():
        if name.startswith("_"):
            continue
        present = infos.get(f"_{name}", np.ones(num_rows, bool))
        nested = _rows_of(values, num_rows) if isinstance(values, dict) else values
        for row in np.flatnonzero(present):
            rows[row][name] = nested[row]
    return rows
