"""Evaluation: exactly N whole episodes of fixed parameters, in this process, reproducible by the seed."""

import dataclasses
import fnmatch
from collections.abc import Mapping

import jax
import numpy as np

from agents.api import AnyAgent, Mode, Params
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.envs.function_source import AnyEnv, as_source
from envpool_bridge.envs.protocol import EnvRows, EnvSource, RestingRows
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tasks import assign_tasks
from jaxsrl.collect.inference.act import ActOnRows, make_act
from jaxsrl.evaluation.player import RowsPlayer, evaluation_seed
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch
from jaxsrl.machine.devices import on_device

ALL_AGENTS = "*"
"""Pattern of the names of all agents."""


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """Results of an evaluation.

    Attributes:
        env_id: id of the environment.
        returns: return of every episode, in environment reward units; the mean over its agents where there are several.
        lengths: length of every episode, in env steps.
        seed: seed that reproduces it.
        greedy: whether the most likely action was taken.
        returns_by_agent: returns of each agent in every episode, by name; NaN where it was absent. {} where a row is an
            environment.
        task_returns: mean return of each task, by name; {} where all rows are alike. A task without an episode is absent.
    """

    env_id: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seed: int
    greedy: bool
    returns_by_agent: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict[str, tuple[float, ...]])
    task_returns: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])

    def __repr__(self) -> str:
        return (
            f"EvaluationReport({self.env_id!r}, {len(self.returns)} episodes, mean_return={self.mean_return:.4g}, "
            f"std_return={self.std_return:.4g}, mean_length={np.mean(self.lengths):.4g}, seed={self.seed}, greedy={self.greedy})"
        )

    @property
    def agent_returns(self) -> dict[str, float]:
        """Mean return of each agent, by name."""
        return {name: float(np.nanmean(values)) for name, values in self.returns_by_agent.items()}

    def of_agents(self, pattern: str) -> "EvaluationReport":
        """Returns the report whose `returns` are means over the agents with matching names; 0 where all of them were absent."""
        if pattern == ALL_AGENTS:
            return self
        absent = (float("nan"),) * len(self.returns)
        values = np.array([absent, *map(self.returns_by_agent.get, fnmatch.filter(self.returns_by_agent, pattern))])
        present = ~np.isnan(values)
        sums, counts = np.where(present, values, 0.0).sum(0), present.sum(0)
        return dataclasses.replace(self, returns=tuple((sums / np.maximum(counts, 1)).tolist()))

    @property
    def mean_return(self) -> float:
        """Mean over episodes."""
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """Standard deviation over episodes."""
        return float(np.std(self.returns))

    def to_json(self) -> dict[str, object]:
        """Returns the JSON data of `jaxsrl evaluate --json`."""
        return {
            "env_id": self.env_id,
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "min_return": min(self.returns),
            "max_return": max(self.returns),
            "episodes": len(self.returns),
            "env_steps": sum(self.lengths),
            "mean_length": float(np.mean(self.lengths)),
            "seed": self.seed,
            "greedy": self.greedy,
            **({"agent_returns": self.agent_returns} if self.returns_by_agent else {}),
            **({"task_returns": dict(self.task_returns)} if self.task_returns else {}),
        }


def evaluate(
    agent: AnyAgent,
    params: Params,
    make_env: AnyEnv,
    *,
    episodes: int = 100,
    seed: int = 0,
    mode: Mode = Mode.GREEDY,
    max_rows: int = 32,
    act: ActOnRows | None = None,
) -> EvaluationReport:
    """Plays `episodes` whole episodes.

    Row i modulo the number of rows plays episode i, so that short episodes are not overrepresented.

    Args:
        agent: agent whose `act` is called.
        params: parameters of the agent.
        make_env: a source of rows, or a function that makes one environment.
        episodes: number of episodes.
        seed: seed of environments and actions; independent of training's seeds.
        mode: greedy or sampled actions.
        max_rows: environments in parallel.
        act: from `make_evaluation_act` with the same arguments, which several calls share; None compiles one.

    Raises:
        UserError: `episodes` or `max_rows` is less than 1, or `seed` negative.
    """
    for name, value, least in (("episodes", episodes, 1), ("max_rows", max_rows, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{name} must be at least {least}: got {value}")
    use_synchronous_cpu_dispatch()
    params = on_one_device(params)
    source = for_evaluation(as_source(make_env))
    spec = source.spec()
    num_envs = min(episodes, max(1, max_rows // spec.rows_per_env))
    num_rows = num_envs * spec.rows_per_env
    wanted = [len(range(env, episodes, num_envs)) for env in range(num_envs)]
    rows = source.make_rows(range(num_rows), evaluation_seed(seed), False)
    if isinstance(rows, RestingRows):
        rows.num_episodes = wanted
    try:
        stacked = with_stacked_frames(agent, spec)
        player = RowsPlayer(stacked, act or make_act(stacked, mode), params, spec, seed, num_rows)
        finished = _play(player, rows, wanted)
    finally:
        rows.close()
    return _report(spec, finished, episodes, seed, mode)


def validate_agents(spec: EnvSpec, pattern: str) -> None:
    """Rejects a pattern of names, as those of `fnmatch`.

    Raises:
        UserError: no agent matches.
    """
    names = [agent.name for agent in spec.agents]
    if not fnmatch.filter(names, pattern):
        known = ", ".join(names) or "none: each row is an environment"
        raise UserError(f"eval.agents {pattern!r}: expected a pattern of names of {spec.env_id}'s agents ({known})")


def make_evaluation_act(agent: AnyAgent, make_env: AnyEnv, mode: Mode) -> ActOnRows:
    """Returns the jitted function that plays the evaluations of one agent, environment and mode."""
    return make_act(with_stacked_frames(agent, for_evaluation(as_source(make_env)).spec()), mode)


def on_one_device(params: Params) -> Params:
    """Returns the parameters on one device.

    Parameters replicated over a mesh would run every call on all of its devices. Parameters in numpy would be sent at every
    step.
    """
    placed = next((leaf for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array)), None)
    return jax.device_put(params) if placed is None else on_device(params, placed.addressable_shards[0].device)


def for_evaluation(source: EnvSource) -> EnvSource:
    """Returns the source of whole games with raw scores, if the source changes episodes or rewards for learning."""
    make = getattr(source, "for_evaluation", None)
    return make() if make is not None else source


def _report(
    spec: EnvSpec,
    finished: list[dict[int, tuple[float, int]]],
    episodes: int,
    seed: int,
    mode: Mode,
) -> EvaluationReport:
    agents = spec.rows_per_env
    num_envs = len(finished) // agents
    returns: list[float] = []
    lengths: list[int] = []
    by_agent: dict[str, list[float]] = {agent.name: [] for agent in spec.agents}
    for episode in range(episodes):
        number, env = divmod(episode, num_envs)
        played = [finished[env * agents + place].get(number) for place in range(agents)]
        results = [result for result in played if result is not None] or [(0.0, 0)]
        returns.append(float(np.mean([value for value, _ in results])))
        lengths.append(max(length for _, length in results))
        for agent, result in zip(spec.agents, played if spec.agents else (), strict=True):
            by_agent[agent.name].append(float("nan") if result is None else result[0])
    played_by = {name: tuple(values) for name, values in by_agent.items() if not np.isnan(values).all()}
    by_task: dict[str, list[float]] = {task.name: [] for task in spec.tasks}
    tasks = assign_tasks(spec.tasks, num_envs) if spec.tasks else []
    for episode, value in enumerate(returns if tasks else ()):
        by_task[spec.tasks[tasks[episode % num_envs]].name].append(value)
    task_means = {name: float(np.mean(values)) for name, values in by_task.items() if values}
    return EvaluationReport(
        spec.env_id, tuple(returns), tuple(lengths), seed, mode is Mode.GREEDY, played_by, task_means
    )


def _play(player: RowsPlayer, rows: EnvRows, wanted: list[int]) -> list[dict[int, tuple[float, int]]]:
    """Plays until each environment has finished `wanted` episodes.

    Returns:
        Return and length of each row's episodes, by the number of the environment's episode; without those that the row's agent
        missed.
    """
    player.start(rows)
    total, length = np.zeros(rows.num_rows), np.zeros(rows.num_rows, int)
    finished: list[dict[int, tuple[float, int]]] = [{} for _ in range(rows.num_rows)]
    agents = rows.num_rows // len(wanted)
    resets = np.zeros(len(wanted), int)  # of whole environments

    def done(env: int) -> bool:
        number = int(resets[env])
        has_ended = all(number in episodes for episodes in finished[env * agents : (env + 1) * agents])
        return number + has_ended >= wanted[env]  # the reset ends the episode of absent agents

    while not all(done(env) for env in range(len(wanted))):
        out = player.step(rows)
        total += out.reward
        length += out.valid
        for row in np.flatnonzero(out.terminated | out.truncated):
            number = int(resets[row // agents])
            before = finished[row].get(number, (0.0, 0))  # of an agent that left and came back
            finished[row][number] = (before[0] + float(total[row]), before[1] + int(length[row]))
            total[row], length[row] = 0.0, 0
        resets += (out.is_first & ~out.valid).reshape(len(wanted), agents).all(1)
    return finished
