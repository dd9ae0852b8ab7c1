"""Rows that differ on purpose: several tasks with equal spaces, each with a share of the environments."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.io.spaces import items_of_observation, items_of_space
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.one_by_one import OneByOneSource
from envpool_bridge.envs.protocol import EnvRows, EnvSource
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec, describe_leaves
from envpool_bridge.spec.tasks import Task, assign_tasks

TASK = "task"
"""Item of the observation that names the task, where one is asked for."""
_SEARCHED_ENVS = 4096  # for the row in a message
_LONGEST_NAME = 100  # characters; directories of runs contain it


@dataclasses.dataclass(frozen=True)
class MixedSource:
    """Rows of several sources; made by `mixed_source`.

    Attributes:
        sources: one for each task.
        row_spec: spec of every row, with the tasks.
    """

    sources: tuple[OneByOneSource, ...]
    row_spec: EnvSpec

    def spec(self) -> EnvSpec:
        """Returns the spec of a row."""
        return self.row_spec

    def for_evaluation(self) -> "MixedSource":
        """Returns rows for evaluation, with as many environments of each task."""
        tasks = tuple(dataclasses.replace(task, share=1.0) for task in self.row_spec.tasks)
        sources = tuple(source.for_evaluation() for source in self.sources)
        return MixedSource(sources, dataclasses.replace(self.row_spec, tasks=tasks))

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Makes the rows of these ids."""
        size = self.row_spec.rows_per_env
        tasks = assign_tasks(self.row_spec.tasks, row_ids[-1] // size + 1)
        makers = iter([self.sources[tasks[row // size]].make_env for row in row_ids[::size]])
        make_next: Callable[[], Any] = lambda: next(makers)()  # noqa: E731  a source calls it once for each environment
        together = dataclasses.replace(self.sources[0], make_env=make_next, env_id=self.row_spec.env_id)
        return together.make_rows(row_ids, run_seed, keep_infos)


def mixed_source(
    sources: Mapping[str, EnvSource], shares: Sequence[float] = (), *, env_id: str = "", add_task: bool = False
) -> MixedSource:
    """Returns a source whose rows are those of several tasks (`assign_tasks`). Makes one environment of each.

    Args:
        sources: Sources by name of the task.
        shares: Shares of the tasks; () for equal shares.
        env_id: name for messages and run directories; "" joins the tasks' names.
        add_task: whether observations get the item "task": [N], 1 at the environment's own task, 0 elsewhere.

    Raises:
        UserError: fewer than two tasks, a bad share, environments that are stepped together, or unequal spaces.
    """
    names = tuple(sources)
    if len(names) < 2:
        raise UserError(f"rows that differ need at least two tasks: got {list(names)}")
    shares = tuple(shares) or (1.0,) * len(names)
    if len(shares) != len(names) or not all(0.0 < share < float("inf") for share in shares):
        raise UserError(f"expected one positive share for each of {list(names)}, got {list(shares)}")
    each: list[OneByOneSource] = []
    for place, (name, source) in enumerate(sources.items()):
        if not isinstance(source, OneByOneSource):
            raise UserError(f"rows that differ are not for {name}, whose environments are stepped together")
        each.append(_with_task(source, place, len(names)) if add_task else source)
    specs = [source.spec() for source in each]
    tasks = tuple(map(Task, names, map(float, shares)))
    for place in range(1, len(names)):
        problem = _difference(specs[0], specs[place]) or settings_difference(each[0], each[place])
        if problem:
            assigned = assign_tasks(tasks, _SEARCHED_ENVS)
            first, other = (
                f"row {assigned.index(task) * specs[0].rows_per_env} ({names[task]})"
                if task in assigned
                else names[task]
                for task in (0, place)
            )
            raise UserError(f"rows that differ need equal spaces: {other} differs from {first}: {problem}")
    joined = env_id or ",".join(names)
    if len(joined) > _LONGEST_NAME:
        joined = f"{names[0]}+{len(names) - 1}"
    limited = all(spec.has_time_limit is not False for spec in specs)
    joint = dataclasses.replace(
        specs[0], env_id=joined, tasks=tasks, has_time_limit=limited and specs[0].has_time_limit
    )
    return MixedSource(tuple(each), joint)


def _difference(first: EnvSpec, other: EnvSpec) -> str:
    """Describes the first difference of two specs apart from their names; "" if there is none."""
    for field in ("observation", "action"):
        expected, given = getattr(first, field), getattr(other, field)
        if expected != given:
            shown, wanted = describe_leaves(field, given), describe_leaves(field, expected)
            detail = f"{given}, not {expected}" if shown == wanted else f"{shown}, not {wanted}"
            return f"{field} is {detail}"
    for field in dataclasses.fields(first):
        expected, given = getattr(first, field.name), getattr(other, field.name)
        if field.compare and field.name != "env_id" and expected != given:
            return f"{field.name} is {given!r}, not {expected!r}"
    return ""


def settings_difference(first: Any, other: Any, ignored: Sequence[str] = ()) -> str:
    """Describes the first difference of settings that rows of one worker share; "" if there is none.

    Args:
        first: source of one environment.
        other: source of another one.
        ignored: settings that may differ, besides the environments and their names.
    """
    if isinstance(first, ParallelSource) != isinstance(other, ParallelSource):
        return "one has several agents"
    shared = ParallelSource if isinstance(first, ParallelSource) else GymnasiumSource  # without a suite's own options
    for field in dataclasses.fields(shared):
        expected, given = getattr(first, field.name), getattr(other, field.name)
        if field.name not in ("make_env", "env_id", "evaluation_env", *ignored) and expected != given:
            return f"{field.name} is {given!r}, not {expected!r}"
    return ""


class TaskObservation(gymnasium.ObservationWrapper):
    """Gymnasium environment with its task in its observations.

    Args:
        env: owned by the wrapper.
        task: index of the task.
        num_tasks: N.
    """

    def __init__(self, env: gymnasium.Env, task: int, num_tasks: int) -> None:
        super().__init__(env)
        self._own = np.zeros(num_tasks, np.float32)
        self._own[task] = 1.0
        items = items_of_space(env.observation_space)
        if TASK in items:
            raise UserError(f"observations have an item {TASK!r} of their own: set add_task false")
        self.observation_space = spaces.Dict({**items, TASK: spaces.Box(0.0, 1.0, (num_tasks,), np.float32)})

    def observation(self, observation: Any) -> dict[str, Any]:
        """Returns the observation with the item."""
        return {**items_of_observation(observation), TASK: self._own}


def _with_task(source: OneByOneSource, task: int, num_tasks: int) -> GymnasiumSource:
    if not isinstance(source, GymnasiumSource):
        raise UserError("add_task is for environments of one agent: set it false")
    return source.wrapped(TaskObservation, task, num_tasks)
