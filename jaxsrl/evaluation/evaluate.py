"""Evaluation: exactly N episodes of fixed parameters, in this process, reproducible by the seed."""

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from agents.api import AnyAgent, Mode, Params
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.envs.function_source import AnyEnv, as_source
from envpool_bridge.envs.io.output_rules import REPAIRS
from envpool_bridge.envs.protocol import EnvSource, RestingRows
from envpool_bridge.envs.seeding import NamedSeeds
from envpool_bridge.envs.vector_env import VectorSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tasks import assign_tasks
from jaxsrl.collect.inference.act import ActOnRows, make_act
from jaxsrl.envs.cpu_rows import JaxSource
from jaxsrl.evaluation.played_episodes import PlayedEpisodes
from jaxsrl.evaluation.player import RowsPlayer, evaluation_seed
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch
from jaxsrl.machine.devices import on_device

ALL_AGENTS = "*"
"""Pattern of the names of all agents."""
MAX_ROWS = 32
"""Environments that an evaluation steps together, unless training had fewer."""
LONGEST_EPISODE = 27_000
"""Env steps after which an episode is cut where no time limit is known: 108,000 frames of an Atari game, the longest usual one."""


@dataclasses.dataclass(frozen=True)
class EpisodeOptions:
    """Rarely needed arguments of `evaluate`.

    Attributes:
        max_episode_steps: env steps after which an episode is cut, and counted as it is; None for `LONGEST_EPISODE` where no time
            limit is known, and for no limit elsewhere.
        seeds: seeds of the episodes in turn, or levels of JAX environments; () draws them from the seed of the evaluation.
        act: function from `make_evaluation_act` with the same arguments, which several calls share; None compiles one.
        on_step: called after each step with the number of finished episodes.
    """

    max_episode_steps: int | None = None
    seeds: tuple[int, ...] = ()
    act: ActOnRows | None = None
    on_step: Callable[[int], None] = lambda finished: None


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
        info_means: Mean of each info field at the ends of episodes, by name; without those that no episode had.
        cut_episodes: episodes that the limit of steps has cut; their returns are those until then.
        seeds: seeds of the episodes, where they were named.
        repaired_outputs: outputs that environments did not return as declared.
    """

    env_id: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seed: int
    greedy: bool
    returns_by_agent: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict[str, tuple[float, ...]])
    task_returns: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    info_means: Mapping[str, float] = dataclasses.field(default_factory=dict[str, float])
    cut_episodes: int = 0
    seeds: tuple[int, ...] = ()
    repaired_outputs: int = 0

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
            **({"info_means": dict(self.info_means)} if self.info_means else {}),
            **({"cut_episodes": self.cut_episodes} if self.cut_episodes else {}),
            **({"seeds": list(self.seeds)} if self.seeds else {}),
            **({"repaired_outputs": self.repaired_outputs} if self.repaired_outputs else {}),
        }


def evaluate(
    agent: AnyAgent,
    params: Params,
    make_env: AnyEnv,
    *,
    episodes: int = 100,
    seed: int = 0,
    mode: Mode = Mode.GREEDY,
    max_rows: int = MAX_ROWS,
    options: EpisodeOptions = EpisodeOptions(),
) -> EvaluationReport:
    """Plays `episodes` whole episodes; those that the limit of steps cuts are counted in the report.

    Row i modulo the number of rows plays episode i, so that short episodes are not overrepresented.

    Args:
        agent: agent whose `act` is called.
        params: parameters of the agent.
        make_env: a source of rows, or a function that makes one environment.
        episodes: number of episodes.
        seed: seed of environments and actions; independent of training's seeds.
        mode: greedy or sampled actions.
        max_rows: environments in parallel.
        options: limit of steps, named seeds, and others.

    Raises:
        UserError: `episodes`, `max_rows` or the limit of steps is less than 1, or `seed` negative.
        UserError: If the environments cannot play the named seeds, or `episodes` is no multiple of their number.
    """
    least_values = (("episodes", episodes, 1), ("max_rows", max_rows, 1), ("seed", seed, 0))
    for name, value, least in (*least_values, ("max_episode_steps", options.max_episode_steps or 1, 1)):
        if value < least:
            raise UserError(f"{name} must be at least {least}: got {value}")
    use_synchronous_cpu_dispatch()
    params = on_one_device(params)
    source = for_evaluation(as_source(make_env))
    spec = source.spec()
    num_envs = min(episodes, max(1, max_rows // spec.rows_per_env))
    num_rows = num_envs * spec.rows_per_env
    wanted = [len(range(env, episodes, num_envs)) for env in range(num_envs)]
    validate_seeds(source, spec, options.seeds, episodes)
    run_seed = evaluation_seed(seed)
    run_seed = NamedSeeds(run_seed, options.seeds, num_envs) if options.seeds else run_seed
    rows, before = source.make_rows(range(num_rows), run_seed, False), REPAIRS.total
    if isinstance(rows, RestingRows):
        rows.num_episodes = wanted
    try:
        stacked = with_stacked_frames(agent, spec)
        player = RowsPlayer(stacked, options.act or make_act(stacked, mode), params, spec, seed, num_rows)
        played = PlayedEpisodes(wanted, num_rows, episode_limit(spec, options.max_episode_steps))
        played.play(player, rows, options.on_step)
        repaired = REPAIRS.total - before + getattr(rows, "repaired_outputs", 0)
    finally:
        rows.close()
    report = _report(spec, played.finished, episodes, seed, mode)
    infos = {name: float(np.nanmean(values)) for name, values in played.infos.items() if not np.isnan(values).all()}
    return dataclasses.replace(
        report, info_means=infos, cut_episodes=played.num_cut, seeds=options.seeds, repaired_outputs=repaired
    )


def episode_limit(spec: EnvSpec, max_episode_steps: int | None) -> int | None:
    """Returns the env steps after which an evaluation cuts an episode; None if it cuts none."""
    return max_episode_steps if max_episode_steps or spec.has_time_limit else LONGEST_EPISODE


def describe_limit(spec: EnvSpec, max_episode_steps: int | None, option: str) -> str:
    """Describes the limit of an evaluation where no time limit is known; "" elsewhere, and where a user has set one."""
    if max_episode_steps or spec.has_time_limit is not False:
        return ""
    limit = f"episodes that have not ended after {LONGEST_EPISODE:,} env steps are cut ({option})"
    return f"Gymnasium knows no time limit of {spec.env_id}: {limit}"


def validate_seeds(source: EnvSource, spec: EnvSpec, seeds: Sequence[int], episodes: int) -> None:
    """Rejects named seeds that the environments cannot play, or that would not be played equally often.

    Raises:
        UserError: says what does not fit, and what to change.
    """
    if not seeds:
        return
    if min(seeds) < 0:
        raise UserError(f"seeds of episodes must not be negative: got {min(seeds)}")
    made_by = getattr(source, "source", source)  # of worker processes
    if isinstance(made_by, VectorSource) or (spec.agents and isinstance(made_by, JaxSource)):
        raise UserError(f"{spec.env_id} draws the seeds of its episodes: expected no seeds or levels of an evaluation")
    if episodes % len(seeds):
        least, below = len(seeds), episodes - episodes % len(seeds)
        raise UserError(
            f"{least} seeds or levels are played equally often: expected a multiple of {least} episodes, got {episodes}; use "
            f"{below or least} or {below + least if below else 2 * least}"
        )


def validate_agents(spec: EnvSpec, pattern: str) -> None:
    """Rejects a pattern of names, as those of `fnmatch`.

    Raises:
        UserError: If no agent matches.
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
