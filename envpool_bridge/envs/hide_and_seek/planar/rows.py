"""Rows of planar worlds: one call of the kernel steps all environments of a worker."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from envpool_bridge.envs.hide_and_seek.game import Game
from envpool_bridge.envs.hide_and_seek.planar.env import PlanarHideAndSeek
from envpool_bridge.envs.hide_and_seek.planar.kernel import (
    NEVER,
    Ends,
    failure_of,
    make_ends,
    make_kit,
    make_worlds,
    step_worlds,
)
from envpool_bridge.envs.hide_and_seek.planar.observe import LEAVES, Shown, make_shown
from envpool_bridge.envs.hide_and_seek.planar.play import stats_of
from envpool_bridge.envs.io.output_rules import OutputRules
from envpool_bridge.envs.io.validation import ValueCheck
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.multi_agent_spec import validate_whole_envs
from envpool_bridge.envs.protocol import EnvRows, EpisodeReset, FirstRows, GymnasiumReset, ResetRequest, StepRows
from envpool_bridge.envs.seeding import EpisodeSeeds, first_episode_steps
from envpool_bridge.errors import WorkerError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree, take


@dataclasses.dataclass(frozen=True)
class PlanarSource(ParallelSource):
    """Rows of the planar engine; worlds are stepped together unless a wrapper enters them or rewards are those of a team."""

    def spec(self) -> EnvSpec:
        """Returns the spec of a row; compiles the kernel, or each worker of a first run would."""
        self.make_env().reset()
        return super().spec()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Makes the rows of these ids, which must cover whole environments. Raises UserError if they split one."""
        env = self.make_env()
        if not isinstance(env, PlanarHideAndSeek) or self.team_reward != "own":
            return super().make_rows(row_ids, run_seed, keep_infos)
        spec = self._spec(env)
        validate_whole_envs(spec, row_ids)
        return PlanarRows(env.game, spec, row_ids, run_seed, keep_infos, self)


class PlanarRows:
    """Rows of planar worlds; implements `EnvRows` with the results of `ParallelRows`.

    Args:
        game: The rules.
        spec: Spec of a row.
        row_ids: Ids of the rows, whole environments.
        run_seed: Seed of the run, or None to draw all seeds.
        keep_infos: Whether to keep the infos of each step.
        source: Options of the rows.
    """

    def __init__(
        self,
        game: Game,
        spec: EnvSpec,
        row_ids: Sequence[int],
        run_seed: int | None,
        keep_infos: bool,
        source: ParallelSource,
    ) -> None:
        self.num_rows = len(row_ids)
        self.infos: list[dict[str, Any]] = []
        self.read_stage: Callable[[int], int | None] = lambda row: spec.stage
        self._spec, self._row_ids, self._keep_infos = spec, list(row_ids), keep_infos
        size = self._size = spec.rows_per_env
        count = self.num_rows // size
        self._kit, self._worlds = make_kit(game), make_worlds(count)
        self._shown = make_shown(game, self.num_rows, source.global_state)
        self._ends = make_ends(count, self.num_rows)
        self._actions = np.zeros((self.num_rows, 5), np.int32)
        self._values = ValueCheck(spec, OutputRules(spec.env_id, row_ids))
        ids = [row // size for row in row_ids[::size]]
        self._seeds = None if run_seed is None else [EpisodeSeeds(run_seed, env_id) for env_id in ids]
        self._episodes = [0] * count
        self._next_seeds = np.full(count, -1, np.int64)
        self._limits = np.full(count, NEVER, np.int64)
        self._first_limits = [NEVER] * count
        if source.stagger and run_seed is not None:
            self._first_limits = [first_episode_steps(run_seed, env_id, source.stagger) for env_id in ids]
        self._num_steps = 0

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Starts an episode in every world, and replays the saved actions of an EpisodeReset in the kernel."""
        size = self._size
        self._worlds["over"] = 1
        if isinstance(request, GymnasiumReset):
            seeds = request.seeds[::size]
            self._next_seeds[:] = [-1 if seed is None else seed for seed in seeds]
        else:
            if self._seeds is None:
                raise ValueError("an EpisodeReset needs rows that were made with a run_seed")
            # A checkpoint counts late joins of agents in other environments; here all agents have one number.
            self._episodes = [request.episodes[row] for row in range(0, self.num_rows, size)]
            self._next_seeds[:] = [seeds.seed(n) for seeds, n in zip(self._seeds, self._episodes, strict=True)]
        for number, episode in enumerate(self._episodes):
            self._limits[number] = NEVER if episode else self._first_limits[number]
        self._run_kernel(slice(None))
        if isinstance(request, EpisodeReset):
            self._replay(request)
        self._write(out)
        self._values.verify(take(out.observation, None), None, self._num_steps)
        out.is_first[...] = self._ends.is_first
        if isinstance(out, StepRows):
            out.mark_reset()
        if self._keep_infos:
            self.infos = [{} for _ in range(self.num_rows)]

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every world, or resets it if its episode ended at the previous step; see the protocol."""
        self._num_steps += 1
        self._actions[...] = action
        if self._worlds["over"].any():
            self._prepare_seeds()
        self._run_kernel(slice(None))
        ends = self._ends
        self._write(out)
        out.reward[...], out.valid[...] = ends.reward, ends.valid
        out.is_first[...], out.truncated[...] = ends.is_first, ends.truncated
        if self._keep_infos:
            self.infos = [{} for _ in range(self.num_rows)]
        if ends.finished.any():
            self._write_infos(out)

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        self._values.verify(observation, reward, self._num_steps)

    def close(self) -> None:
        """Returns at once: worlds are arrays."""

    def _prepare_seeds(self) -> None:
        for number in np.flatnonzero(self._worlds["over"]).tolist():
            self._episodes[number] += 1
            self._limits[number] = NEVER
            self._next_seeds[number] = -1 if self._seeds is None else self._seeds[number].seed(self._episodes[number])

    def _replay(self, request: EpisodeReset) -> None:
        """Replays each world's episode up to its saved step; observations and flags are those of that step."""
        size = self._size
        for number in range(len(self._worlds)):
            rows = slice(number * size, (number + 1) * size)
            saved = [actions for actions in request.actions[rows] if actions is not None]
            if len(saved) < size:
                continue
            steps = np.stack(saved, axis=1)  # [T, agents, 5]
            self._ends.is_first[rows] = len(steps) == 0
            for actions in steps:
                request.on_step()
                self._actions[rows] = actions
                self._run_kernel(slice(number, number + 1))

    def _run_kernel(self, worlds: slice) -> None:
        """Steps or resets some worlds."""
        rows = self._rows_of(worlds)
        *of_rows, finished = self._ends
        ends = Ends._make([*(array[rows] for array in of_rows), finished[worlds]])
        shown = Shown(*(array[rows] for array in self._shown))
        actions = self._actions[rows]
        status = step_worlds(
            self._worlds[worlds], self._kit, actions, self._next_seeds[worlds], self._limits[worlds], shown, ends
        )
        failure = failure_of(status, actions)
        if failure:
            row = self._row_ids[(worlds.start or 0) * self._size + max(status - 1, 0)]
            raise WorkerError(f"{self._spec.env_id}, row {row}, step {self._num_steps}: {failure}")

    def _rows_of(self, worlds: slice) -> slice:
        if worlds.start is None:
            return worlds
        return slice(worlds.start * self._size, worlds.stop * self._size)

    def _write(self, out: FirstRows | StepRows) -> None:
        for name, values in zip(LEAVES, self._shown, strict=True):
            if name in out.observation:
                out.observation[name][...] = values

    def _write_infos(self, out: StepRows) -> None:
        """Writes the statistics of the episodes that ended, for every agent of each."""
        for number in np.flatnonzero(self._ends.finished).tolist():
            stats = stats_of(self._worlds[number])
            for row in range(number * self._size, (number + 1) * self._size):
                if not self._ends.valid[row]:
                    continue
                if self._keep_infos:
                    self.infos[row] = dict(stats)
                for name, target in out.infos.items():
                    if name in stats:
                        target[row] = stats[name]
