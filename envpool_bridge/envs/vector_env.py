"""Rows of a vector environment that steps all of them in one call: Gymnasium's own, ALE's, the EnvPool package's."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from envpool_bridge.envs.closing import closed_on_error
from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.action_reader import ActionReader
from envpool_bridge.envs.io.info_fields import write_infos
from envpool_bridge.envs.io.output_rules import OutputRules, as_numpy, raise_bad_output
from envpool_bridge.envs.io.spaces import spec_of_spaces
from envpool_bridge.envs.io.vector_observation_writer import VectorObservationWriter
from envpool_bridge.envs.one_by_one import creation_errors
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, ResetRequest, StepRows
from envpool_bridge.envs.seeding import episode_seed
from envpool_bridge.errors import UserError, WorkerError
from envpool_bridge.spec.specs import EnvSpec, with_frames
from envpool_bridge.spec.tree import Tree, take

MakeVectorEnv = Callable[[int], VectorEnv]


@dataclasses.dataclass(frozen=True)
class VectorSource:
    """Rows of `make_vector_env(num_envs)`, which must reset in NEXT_STEP mode (Gymnasium's default).

    A native vector environment seeds its own later episodes. A resumed run therefore starts new episodes instead of
    continuing the old ones bit for bit.

    Attributes:
        make_vector_env: makes a vector of N environments; defined at the top level of a module, so that workers can
            import it.
        env_id: name for messages; "" takes the environment's own.
        action_repeat: emulator frames per env step.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.
        frame_stack: number of newest values of every array that agents see at once; each is stored once.
        seeds_rows: whether its `reset` takes a list with one seed for each row. Gymnasium's SyncVectorEnv and
            AsyncVectorEnv do, and are detected. Others get the first row's seed and derive the rest from it.
        info_fields: numbers in the infos to record; see EnvSpec.
    """

    make_vector_env: MakeVectorEnv
    env_id: str = ""
    action_repeat: int = 1
    strict: bool = True
    frame_stack: int = 1
    seeds_rows: bool = False
    info_fields: tuple[str, ...] = ()

    def spec(self) -> EnvSpec:
        """Returns the spec of a row; makes a vector of one and closes it."""
        with creation_errors(self.env_id):
            env = self.make_vector_env(1)
        try:
            return self._spec(env)
        finally:
            env.close()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> "VectorRows":
        """Makes the rows of these ids."""
        with closed_on_error() as made:
            made.append(env := self.make_vector_env(len(row_ids)))
            rows = VectorRows(env, self._spec(env), row_ids, run_seed, keep_infos, self.strict)
        rows.seeds_rows = self.seeds_rows or isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        return rows

    def _spec(self, env: VectorEnv) -> EnvSpec:
        env_id = self.env_id or (env.spec.id if env.spec is not None else type(env).__name__)
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.NEXT_STEP:
            raise UserError(
                f"{env_id}: expected a vector environment with autoreset_mode NEXT_STEP, got {mode}: "
                f"pass autoreset_mode=AutoresetMode.NEXT_STEP when making it"
            )
        observation, action = env.single_observation_space, env.single_action_space
        spec = with_frames(spec_of_spaces(observation, action, env_id, self.action_repeat), self.frame_stack)
        return dataclasses.replace(spec, info_fields=tuple(self.info_fields))


class VectorRows:
    """Rows of one vector environment; implements `EnvRows`.

    Args:
        env: owned by the rows.
        spec: spec of a row.
        row_ids: ids of the rows.
        run_seed: seed of the run, or None for Gymnasium's own seeding.
        keep_infos: whether to keep the infos of each step.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.

    Attributes:
        seeds_rows: Whether `reset` takes a seed for each row, as in VectorSource.
    """

    def __init__(
        self,
        env: VectorEnv,
        spec: EnvSpec,
        row_ids: Sequence[int],
        run_seed: int | None,
        keep_infos: bool,
        strict: bool,
    ) -> None:
        self.num_rows = env.num_envs
        self.infos: list[dict[str, Any]] = []
        self.seeds_rows = False
        self._env = env
        self._spec = spec
        self._row_ids = list(row_ids)
        self._run_seed = run_seed
        self._keep_infos = keep_infos
        rules = OutputRules(spec.env_id, self._row_ids, strict)
        self._writer = VectorObservationWriter(spec, rules)
        self._values = validation.ValueCheck(spec, rules)
        self._actions = ActionReader(spec.action, True)
        self._last_observation: Tree = None  # [R, ...] a leaf, the policy's present input
        self._ended = np.zeros(self.num_rows, bool)
        self._num_steps = 0
        self._closed = False

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Starts new episodes in all rows (with an EpisodeReset too: see VectorSource)."""
        options = request.options if isinstance(request, GymnasiumReset) else None
        try:
            observation, infos = self._env.reset(seed=self._seed(request), options=options)
        except Exception as error:
            raise self._failure("reset", error) from error
        self._ended[...] = False
        self._writer.write(observation, out.observation, self._num_steps)
        self._values.verify(take(out.observation, None), None, self._num_steps)
        self._last_observation = out.observation
        out.is_first.fill(True)
        if isinstance(out, StepRows):
            out.mark_reset()
        if self._keep_infos:
            self.infos = _rows_of(infos, self.num_rows)

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps the vector environment once and writes the results of all rows."""
        given = self._env_actions(action)
        self._num_steps += 1
        try:
            observation, *results, infos = self._env.step(given)
        except Exception as error:
            raise self._failure("step", error) from error
        self._writer.write(observation, out.observation, self._num_steps)
        self._last_observation = out.observation
        reward, terminated, truncated = map(as_numpy, results)
        self._require("reward", reward, "fiu")
        self._require("terminated", terminated, "b")
        self._require("truncated", truncated, "b")
        out.reward[...] = reward
        out.terminated[...] = terminated
        out.truncated[...] = truncated
        np.logical_not(self._ended, out=out.valid)
        out.is_first[...] = self._ended
        np.logical_or(terminated, truncated, out=self._ended)
        if self._keep_infos or out.infos:
            self.infos = _rows_of(infos, self.num_rows)
            write_infos(self._spec.env_id, self._row_ids, self._num_steps, self.infos, out)

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        self._values.verify(observation, reward, self._num_steps)

    def close(self) -> None:
        """Closes the vector environment; idempotent."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _seed(self, request: ResetRequest) -> Any:
        """Returns one seed for each row if the environment takes them; otherwise one for the vector."""
        if isinstance(request, EpisodeReset):
            if self._run_seed is None:
                return None
            each = [episode_seed(self._run_seed, *row) for row in zip(self._row_ids, request.episodes, strict=True)]
            return each if self.seeds_rows else each[0]
        first = request.seeds[0]
        if first is None or request.seeds == tuple(range(first, first + self.num_rows)):
            return first  # equivalent, and every implementation accepts it
        return list(request.seeds)

    def _env_actions(self, action: Tree) -> Tree:
        """Returns actions in the source's form and dtypes, clipped to the bounds of the space."""
        not_finite = self._actions.first_not_finite(action)
        if not_finite is not None:
            if self._last_observation is not None:  # the observation may be the cause
                self._values.verify(take(self._last_observation, None), None, self._num_steps)
            row, description = not_finite
            raise WorkerError(
                f"{self._spec.env_id}, row {self._row_ids[row]}, step {self._num_steps + 1}: the policy's action is not "
                f"finite: {description}; the parameters have probably diverged (lower the learning rate)"
            )
        return self._actions.read_together(action)

    def _require(self, field: str, values: Any, kinds: str) -> None:
        good = isinstance(values, np.ndarray) and values.shape == (self.num_rows,) and values.dtype.kind in kinds
        if not good:
            wanted = "bool" if kinds == "b" else "numbers"
            problem = f"expected an array of shape ({self.num_rows},) of {wanted}, got {validation.describe(values)}"
            raise_bad_output(self._spec.env_id, self._row_ids[0], self._num_steps, field, problem)

    def _failure(self, what: str, error: Exception) -> WorkerError:
        rows = f"rows {self._row_ids[0]} to {self._row_ids[-1]}"
        return WorkerError(f"{self._spec.env_id}, {rows}, {what} {self._num_steps}: {type(error).__name__}: {error}")


def _rows_of(infos: dict[str, Any], num_rows: int) -> list[dict[str, Any]]:
    """Converts Gymnasium's vector infos to one dict for each row: the inverse of `VectorEnv._add_info`."""
    rows: list[dict[str, Any]] = [{} for _ in range(num_rows)]
    for name, values in infos.items():
        if name.startswith("_"):
            continue
        present = infos.get(f"_{name}", np.ones(num_rows, bool))
        nested = _rows_of(values, num_rows) if isinstance(values, dict) else values
        for row in np.flatnonzero(present):
            rows[row][name] = nested[row]
    return rows
