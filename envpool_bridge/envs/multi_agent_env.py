"""Rows of multi-agent environments with PettingZoo's parallel API: a row is one agent of one environment."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from envpool_bridge.envs.closing import close_each, closed_on_error
from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.homogeneous_agents import HomogeneousAgents, are_homogeneous
from envpool_bridge.envs.io.info_fields import write_infos
from envpool_bridge.envs.io.output_rules import raise_bad_output
from envpool_bridge.envs.io.per_agent_rows import PerAgentRows
from envpool_bridge.envs.multi_agent_spec import parallel_spec, validate_whole_envs, with_state
from envpool_bridge.envs.one_by_one import OneByOneSource
from envpool_bridge.envs.parallel_env import ParallelEnv
from envpool_bridge.envs.protocol import (
    EnvRows,
    EpisodeReset,
    FirstRows,
    GymnasiumReset,
    ResetRequest,
    StepRows,
    reset_options,
)
from envpool_bridge.envs.seeding import EpisodeSeeds, first_episode_steps
from envpool_bridge.errors import BadEnvOutputError, WorkerError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import Tree, leaves, take

_NEVER = 1 << 62  # steps
TeamReward = Literal["own", "sum", "mean"]


@dataclasses.dataclass(frozen=True)
class ParallelSource(OneByOneSource):
    """Rows of `make_env()`, a PettingZoo parallel environment.

    Attributes:
        make_env: makes one environment; any callable that cloudpickle can send to workers.
        env_id: name for messages; "" takes the class's.
        team_reward: "own" gives every agent its reward; "sum" and "mean" give all agents that of the team.
        global_state: whether the environment's `state()` is recorded for centralized critics, as the leaf "state".
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.
        clip_actions: whether continuous actions are clipped to the space's bounds.
        info_fields: numbers in the agents' infos to record; see EnvSpec.
        stage: Stage, as in GymnasiumSource.
        stagger: Stagger, as in GymnasiumSource.
        action_repeat: steps of the environment per env step.
        evaluation_env: Evaluation env, as in GymnasiumSource.
    """

    make_env: Callable[[], ParallelEnv]
    env_id: str = ""
    team_reward: TeamReward = "own"
    global_state: bool = False
    strict: bool = True
    clip_actions: bool = True
    info_fields: tuple[str, ...] = ()
    stage: int | None = None
    stagger: int = 0
    action_repeat: int = 1
    evaluation_env: Callable[[], ParallelEnv] | None = None

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Makes the rows of these ids, which must cover whole environments.

        Raises:
            UserError: If the ids split an environment.
        """
        with closed_on_error() as envs:
            envs.append(self.make_env())
            spec = self._spec(envs[0])
            validate_whole_envs(spec, row_ids)
            count = len(row_ids) // spec.rows_per_env
            envs.extend(self.make_env() for _ in range(count - 1))  # adds one after another
            return ParallelRows(envs, spec, row_ids, run_seed, keep_infos, self)

    def _spec(self, env: ParallelEnv) -> EnvSpec:
        spec = parallel_spec(env, self.env_id or type(env).__name__, self.global_state)
        return dataclasses.replace(
            spec, info_fields=tuple(self.info_fields), stage=self.stage, action_repeat=self.action_repeat
        )


class ParallelRows:
    """Rows of multi-agent environments; implements `EnvRows`.

    An absent agent has `valid=False`; one that joins has `is_first=True`.

    Args:
        envs: owned by the rows.
        spec: spec of a row.
        row_ids: ids of the rows, whole environments.
        run_seed: seed of the run, or None for the environments' own seeding.
        keep_infos: whether to keep the infos of each step.
        source: options of the rows.

    Attributes:
        read_stage: Function that reads the stage, as in StagedRows.
    """

    def __init__(
        self,
        envs: Sequence[ParallelEnv],
        spec: EnvSpec,
        row_ids: Sequence[int],
        run_seed: int | None,
        keep_infos: bool,
        source: ParallelSource,
    ) -> None:
        self._envs, self._spec, self._source = list(envs), spec, source
        self.num_rows = len(row_ids)
        self.infos: list[dict[str, Any]] = []
        self._row_ids, self._keep_infos = list(row_ids), keep_infos
        self._names = [agent.name for agent in spec.agents]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._columns = [
            PerAgentRows(spec, place, row_ids, source.strict, source.clip_actions) for place in range(spec.rows_per_env)
        ]
        checks = source.strict, source.clip_actions
        self._alike = HomogeneousAgents(spec, self._row_ids, *checks) if are_homogeneous(spec) else None
        ids = [row // spec.rows_per_env for row in row_ids[:: spec.rows_per_env]]
        self._seeds = None if run_seed is None else [EpisodeSeeds(run_seed, env_id) for env_id in ids]
        self._episodes = [0] * len(envs)
        self._present = np.zeros((len(envs), spec.rows_per_env), bool)  # agents with an observation of their own
        self._ended = [False] * len(envs)
        self._num_steps = 0
        self.read_stage: Callable[[int], int | None] = lambda row: spec.stage
        self._first_limits = [_NEVER] * len(envs)  # env steps of the first episodes
        if source.stagger and run_seed is not None:
            self._first_limits = [first_episode_steps(run_seed, env_id, source.stagger) for env_id in ids]
        self._cuts = [_NEVER] * len(envs)  # steps of all rows at which the first episodes are truncated
        self._next_cut = _NEVER

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        shown: list[dict[str, Any]] = []
        out.is_first[...] = True
        for number in range(len(self._envs)):
            if isinstance(request, GymnasiumReset):
                seed = request.seeds[number * self._spec.rows_per_env]
                observations = self._reset_env(number, seed, request.options)
            else:
                observations = self._replay(number, request, out)
            shown.append(observations)
            self._present[number] = [name in observations for name in self._names]
            self._ended[number] = not self._envs[number].agents or self._cuts[number] <= self._num_steps
        self._write(shown, out.observation, thorough=True)
        self._verify_values(take(out.observation, None))
        if isinstance(out, StepRows):
            out.mark_reset()
        if self._keep_infos:
            self.infos = [{} for _ in range(self.num_rows)]

    def step(self, action: Tree, out: StepRows) -> None:
        """Steps every environment, or resets it if its episode ended at the previous step; see the protocol."""
        self._require_finite(action)
        self._num_steps += 1
        actions = self._read(action)
        shown: list[dict[str, Any]] = []
        infos: list[dict[str, Any]] = []
        for number in range(len(self._envs)):
            if self._ended[number]:
                shown.append(self._autoreset(number, out))
                infos += [{} for _ in self._names]
            else:
                observations, env_infos = self._step_env(number, actions[number], out)
                shown.append(observations)
                infos += [env_infos.get(name, {}) for name in self._names]
        if self._num_steps >= self._next_cut:
            self._cut(out)
        self._write(shown, out.observation, thorough=self._num_steps % 16 == 1)
        if self._keep_infos:
            self.infos = infos
        if out.infos:
            write_infos(self._spec.env_id, self._row_ids, self._num_steps, infos, out)

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        self._verify_values(observation)
        bad = np.argwhere(~np.isfinite(reward))
        if len(bad):
            index, row = (int(number) for number in bad[0])
            step = self._num_steps - len(reward) + 1 + index
            problem = f"expected a finite {reward.dtype}, got {reward[index, row]}"
            raise_bad_output(self._named(row), self._row_ids[row], step, "reward", problem)

    def close(self) -> None:
        """Closes the environments; idempotent. Raises the first exception of one after all have been closed."""
        envs, self._envs = self._envs, []
        close_each(envs)

    def _step_env(self, number: int, actions: dict[str, Any], out: StepRows) -> tuple[dict[str, Any], dict[str, Any]]:
        env, base = self._envs[number], number * self._spec.rows_per_env
        living = list(env.agents)
        everyone = living == self._names
        try:
            result = env.step(actions if everyone else {name: actions[name] for name in living})
        except Exception as error:
            raise self._raised(number, "step", error) from error
        if not (isinstance(result, tuple) and len(result) == 5 and all(isinstance(part, dict) for part in result)):
            expected = "expected five dicts by agent (observations, rewards, terminations, truncations, infos)"
            self._reject(number, "step result", f"{expected}, got {validation.describe(result)}")
        observations, infos = result[0], result[4]
        self._require_agents(number, living, result)
        rows = [base + self._places[name] for name in living]
        ends = self._plain_ends(rows, [[part[name] for name in living] for part in result[1:4]])
        self._write_ends(rows, ends, out)
        self._write_team_reward(rows, out)
        if True in ends[1] or True in ends[2]:
            self._require_left(rows, ends, env.agents)
        if not everyone or env.agents != living:
            self._require_observed(number, observations)
            self._write_changes(base, living, env.agents, out)
        self._present[number] = [name in observations for name in self._names]
        self._ended[number] = not env.agents
        return observations, infos

    def _write_changes(self, base: int, living: list[str], agents: list[str], out: StepRows) -> None:
        """Marks the agents that are absent, have joined, or have left."""
        for row, name in enumerate(self._names, base):
            if name not in living:
                out.valid[row], out.reward[row] = False, 0.0
                out.is_first[row] = name in agents  # joined
            elif name not in agents and not (out.terminated[row] or out.truncated[row]):
                out.truncated[row] = True  # left without a flag: its episode was truncated

    def _write_ends(self, rows: list[int], ends: list[list[Any]], out: StepRows) -> None:
        """Writes rewards, terminations and truncations, one of each for a row."""
        if rows:
            out.reward[rows], out.terminated[rows], out.truncated[rows] = ends

    def _plain_ends(self, rows: list[int], ends: list[list[Any]]) -> list[list[Any]]:
        """Returns rewards as numbers, terminations and truncations as bools, one of each for a row."""
        flags, dtype = validation.BOOLS, self._spec.reward_dtype
        rewards, terminated, truncated = ends
        plain = flags.issuperset(map(type, terminated)) and flags.issuperset(map(type, truncated))
        if plain and validation.are_plain_rewards(rewards, dtype):
            return ends
        for place, (row, reward, *flagged) in enumerate(zip(rows, *ends, strict=True)):
            number, agent = divmod(row, self._spec.rows_per_env)
            at = self._columns[agent].rules, number, self._num_steps
            rewards[place] = validation.plain_reward(*at, reward, dtype)
            terminated[place] = validation.plain_flag(*at, "terminated", flagged[0])
            truncated[place] = validation.plain_flag(*at, "truncated", flagged[1])
        return ends

    def _write_team_reward(self, rows: list[int], out: StepRows) -> None:
        if self._source.team_reward == "own" or not rows:
            return
        total = float(out.reward[rows].sum())
        out.reward[rows] = total if self._source.team_reward == "sum" else total / len(rows)

    def _require_agents(self, number: int, living: list[str], result: tuple[dict[str, Any], ...]) -> None:
        expected = set(living)
        if all(part.keys() == expected for part in result[:4]):
            return
        for field, part in zip(("observation", "reward", "terminated", "truncated"), result[:4], strict=True):
            missing = [name for name in living if name not in part]
            unknown = [name for name in part if name not in self._places]
            if missing or unknown:
                self._reject(number, field, f"expected one of each of {living}, got {sorted(map(str, part))}")

    def _require_left(self, rows: list[int], ends: list[list[Any]], agents: list[str]) -> None:
        """Raises if an agent has ended and is still in `agents`, which PettingZoo forbids: the episode would never end."""
        for row, terminated, truncated in zip(rows, *ends[1:], strict=True):
            if (terminated or truncated) and self._names[row % self._spec.rows_per_env] in agents:
                field = "terminated" if terminated else "truncated"
                problem = f"expected an agent that ends to leave env.agents, got {list(agents)}"
                raise_bad_output(self._named(row), self._row_ids[row], self._num_steps, field, problem)

    def _require_observed(self, number: int, observations: dict[str, Any]) -> None:
        """Raises if an agent of `env.agents` has no observation."""
        agents = list(self._envs[number].agents)
        if not observations.keys() >= set(agents):
            problem = f"expected one of each of env.agents, {agents}, got {sorted(map(str, observations))}"
            self._reject(number, "observation", problem)

    def _autoreset(self, number: int, out: StepRows) -> dict[str, Any]:
        self._episodes[number] += 1
        seed = None if self._seeds is None else self._seeds[number].seed(self._episodes[number])
        observations = self._reset_env(number, seed, reset_options(self.read_stage(number * self._spec.rows_per_env)))
        base = number * self._spec.rows_per_env
        rows = slice(base, base + self._spec.rows_per_env)
        out.valid[rows], out.reward[rows] = False, 0.0
        out.is_first[rows] = True
        self._present[number] = [name in observations for name in self._names]
        self._ended[number] = not self._envs[number].agents
        return observations

    def _reset_env(self, number: int, seed: int | None, options: dict[str, Any] | None) -> dict[str, Any]:
        try:
            observations, _ = self._envs[number].reset(seed=seed, options=options)
        except Exception as error:
            raise self._raised(number, "reset", error) from error
        if not isinstance(observations, dict) or not self._envs[number].agents:
            problem = f"expected observations by agent, of at least one, got {validation.describe(observations)}"
            self._reject(number, "reset result", problem)
        self._require_observed(number, observations)
        self._begin(number, self._num_steps)
        return observations

    def _begin(self, number: int, num_steps: int) -> None:
        """Starts the environment's episode after `num_steps` steps of all rows."""
        self._cuts[number] = _NEVER if self._episodes[number] else num_steps + self._first_limits[number]
        self._next_cut = min(self._cuts)

    def _cut(self, out: StepRows) -> None:
        """Truncates the first episodes that end at this step."""
        for number, cut in enumerate(self._cuts):
            base = number * self._spec.rows_per_env
            rows = slice(base, base + self._spec.rows_per_env)
            if self._num_steps == cut and not self._ended[number]:
                out.truncated[rows] |= out.valid[rows] & ~out.terminated[rows]
                self._ended[number] = True
        self._next_cut = min((cut for cut in self._cuts if cut > self._num_steps), default=_NEVER)

    def _replay(self, number: int, request: EpisodeReset, out: FirstRows | StepRows) -> dict[str, Any]:
        """Replays the environment's episode up to its saved step."""
        if self._seeds is None:
            raise ValueError("an EpisodeReset needs rows that were made with a run_seed")
        rows = range(number * self._spec.rows_per_env, (number + 1) * self._spec.rows_per_env)
        self._episodes[number] = min(request.episodes[row] for row in rows)  # old checkpoints count late joins
        options = reset_options(request.stages[rows.start] if request.stages else self.read_stage(rows.start))
        observations = self._reset_env(number, self._seeds[number].seed(self._episodes[number]), options)
        actions = [request.actions[row] for row in rows]
        lengths = {0 if action is None else len(leaves(action)[0]) for action in actions}
        if len(lengths) != 1 or lengths == {0}:
            return observations  # not saved, or an old checkpoint has no actions of before a late join
        env = self._envs[number]
        columns = [column.replayed(action) for column, action in zip(self._columns, actions, strict=True)]
        length, living = lengths.pop(), env.agents
        for t in range(length):
            request.on_step()
            living = list(env.agents)  # step may change it
            given = {name: columns[self._places[name]][t] for name in living}
            try:
                observations = env.step(given)[0]
            except Exception as error:
                raise self._raised(number, "step (replayed after a resume)", error) from error
        self._begin(number, self._num_steps - length)
        out.is_first[rows] = [name in env.agents and name not in living for name in self._names]
        return observations

    def _read(self, action: Tree) -> list[dict[str, Any]]:
        """Returns the actions of each environment, by agent name."""
        if self._alike is not None:
            return self._alike.read(action)
        columns = [column.read(action) for column in self._columns]
        return [dict(zip(self._names, one, strict=True)) for one in zip(*columns, strict=True)]

    def _write(self, shown: list[dict[str, Any]], out: Tree, thorough: bool) -> None:
        if self._spec.critic_only:
            shown = [with_state(env, names) for env, names in zip(self._envs, shown, strict=True)]
        if self._alike is not None:
            try:
                self._alike.write(shown, out, self._num_steps, thorough)
                return
            except BadEnvOutputError:
                thorough = True  # agent by agent, for a message that names the agent
        for column in self._columns:
            column.write([observations.get(column.name) for observations in shown], out, self._num_steps, thorough)

    def _verify_values(self, observation: Tree) -> None:
        if self._alike is not None:
            try:
                self._alike.verify(observation, self._num_steps)
                return
            except BadEnvOutputError:
                pass  # as above
        for column in self._columns:
            column.verify(observation, self._num_steps)

    def _require_finite(self, action: Tree) -> None:
        if self._alike is not None and self._alike.are_finite(action):
            return
        for place, column in enumerate(self._columns):
            not_finite = column.first_not_finite(action)
            if not_finite is not None and self._present[not_finite[0], place]:
                row = not_finite[0] * self._spec.rows_per_env + place
                raise WorkerError(
                    f"{self._named(row)}, row {self._row_ids[row]}, step {self._num_steps + 1}: the policy's action is not "
                    f"finite: {not_finite[1]}; the parameters have probably diverged (lower the learning rate)"
                )

    def _reject(self, number: int, field: str, problem: str) -> NoReturn:
        row = self._row_ids[number * self._spec.rows_per_env]
        raise_bad_output(self._spec.env_id, row, self._num_steps, field, problem)

    def _named(self, row: int) -> str:
        return f"{self._spec.env_id}, agent {self._names[row % self._spec.rows_per_env]}"

    def _raised(self, number: int, what: str, error: Exception) -> WorkerError:
        row = self._row_ids[number * self._spec.rows_per_env]
        return WorkerError(
            f"{self._spec.env_id}, rows from {row}, {what} {self._num_steps}: {type(error).__name__}: {error}"
        )
