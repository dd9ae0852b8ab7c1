"""Whole episodes as steps of a dataset, selection of the best of them, and merging of datasets."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import spec_to_dict
from envpool_bridge.spec.tree import Tree, map_leaves, take
from jaxsrl.datasets.compare import same_actions, same_values
from jaxsrl.datasets.dataset import Dataset, find_episodes, open_dataset
from jaxsrl.datasets.writer import DatasetWriter, make_dataset

_APPENDED_STEPS = 4096


def episode_steps(
    observation: Tree,
    action: Tree,
    reward: np.ndarray,
    ends: tuple[bool, bool],
    extras: Mapping[str, np.ndarray] | None = None,
) -> Trajectory:
    """Returns an episode of n steps as n + 1 steps of one row, the last of which only resets.

    Args:
        observation: [n + 1, ...] a leaf, the terminal one last.
        action: [n, ...] a leaf.
        reward: [n].
        ends: whether the last step terminated the episode, and whether it truncated it; one of both, or both.
        extras: [n, ...] each.
    """
    count = len(reward)

    def pad(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros_like(array[:1])])[:, None]

    flags = {name: np.zeros((count + 1, 1), bool) for name in ("terminated", "truncated")}
    flags["terminated"][count - 1], flags["truncated"][count - 1] = ends
    is_first = np.zeros((count + 2, 1), bool)
    is_first[[0, -1]] = True
    numbers: dict[str, Any] = {
        "reward": pad(reward),
        "valid": np.arange(count + 1)[:, None] < count,
        "policy_version": np.zeros((count + 1, 1), np.int32),
        "is_first": is_first,
        "extras": {name: pad(extra) for name, extra in (extras or {}).items()},
        **flags,
    }
    # The next episode's first observation replaces the last one.
    seen = map_leaves(lambda leaf: np.concatenate([leaf, leaf[-1:]])[:, None], observation)
    return Trajectory(observation=seen, action=map_leaves(pad, action), **numbers)


def merge(paths: Sequence[Path], out: Path, best: float = 1.0) -> Dataset:
    """Writes the steps of several datasets into one.

    Where the numbers of rows differ, or a share is selected, only whole episodes are taken, and follow each other in one row.
    Values that agents added to steps are kept if all datasets have them.

    Args:
        paths: directories of the datasets, of one environment.
        out: directory to create.
        best: share of the episodes to take, those of the highest returns; over all datasets.

    Raises:
        UserError: If the environments or values of the same name differ, `best` is not in (0, 1], single episodes would be taken
            of an environment with agents, or `out` has files.
    """
    if not 0.0 < best <= 1.0:
        raise UserError(f"best is a share of the episodes: expected a number in (0, 1], got {best}")
    datasets = [open_dataset(path) for path in paths]
    _validate_alike(datasets)
    first = datasets[0].manifest
    common = set.intersection(*[set(dataset.manifest.extras) for dataset in datasets])
    _validate_extras(datasets, common)
    extras = {name: extra for name, extra in first.extras.items() if name in common}
    is_whole = best == 1.0 and len({dataset.manifest.num_rows for dataset in datasets}) == 1
    if not is_whole and first.spec.agents:
        raise UserError(
            f"the episodes of several agents belong together: {paths[0]} can be merged with best 1 and datasets of "
            f"{first.num_rows} rows only"
        )
    origin = {"merged": [{"path": dataset.path.name, **dataset.manifest.origin} for dataset in datasets], "best": best}
    manifest = dataclasses.replace(first, num_rows=first.num_rows if is_whole else 1, extras=extras, origin=origin)
    with make_dataset(out, manifest) as writer:
        if is_whole:
            for dataset in datasets:
                _append(writer, _with_extras(dataset.steps, common), dataset.manifest.num_steps)
                writer.end_segment()
        else:
            _append_episodes(writer, datasets, common, best)
    return open_dataset(out)


def write_first_steps(path: Path, out: Path, num_steps: int) -> Dataset:
    """Writes the first steps of every row of a dataset into another one.

    Args:
        path: directory of the dataset.
        out: directory to create.
        num_steps: steps of a row to take.

    Raises:
        UserError: If the dataset has fewer steps, or `out` has files.
    """
    dataset = open_dataset(path)
    if not 0 < num_steps <= dataset.manifest.num_steps:
        raise UserError(f"{path} has {dataset.manifest.num_steps} steps of each row: expected at least {num_steps}")
    origin = {**dataset.manifest.origin, "first_steps": num_steps}
    with make_dataset(out, dataclasses.replace(dataset.manifest, origin=origin)) as writer:
        _append(writer, dataset.steps, num_steps)
    return open_dataset(out)


def _validate_alike(datasets: Sequence[Dataset]) -> None:
    first = datasets[0].manifest.spec
    ids = {
        str(env["id"]): path
        for path, env in [(data.path, data.manifest.env) for data in datasets]
        if env and "id" in env
    }
    if len(ids) > 1:
        named = ", ".join(f"{path} is of {env_id}" for env_id, path in ids.items())
        raise UserError(f"datasets of one environment can be merged: {named}")
    for dataset in datasets:
        spec = dataset.manifest.spec
        alike = same_values(spec.observation, first.observation) and same_actions(spec.action, first.action)
        if not alike or any(
            spec_to_dict(spec)[part] != spec_to_dict(first)[part] for part in ("agents", "reward_dtype")
        ):
            raise UserError(
                f"datasets of one environment can be merged: {dataset.path} has another observation or action than "
                f"{datasets[0].path}"
            )


def _validate_extras(datasets: Sequence[Dataset], names: set[str]) -> None:
    for name in sorted(names):
        first, *others = [dataset.manifest.extras[name] for dataset in datasets]
        for dataset, extra in zip(datasets[1:], others, strict=True):
            if (extra.dtype, extra.shape) != (first.dtype, first.shape):
                raise UserError(
                    f"datasets whose steps have the same values can be merged: expected {name} of {dataset.path} to be "
                    f"{first.dtype} {first.shape} as in {datasets[0].path}, got {extra.dtype} {extra.shape}; merge those of one "
                    f"algorithm"
                )


def _with_extras(steps: Trajectory, names: set[str]) -> Trajectory:
    return dataclasses.replace(steps, extras={name: extra for name, extra in steps.extras.items() if name in names})


def _append(writer: DatasetWriter, steps: Trajectory, num_steps: int) -> None:
    """Appends the first `num_steps` steps of all rows."""
    for begin in range(0, num_steps, _APPENDED_STEPS):
        writer.append(_slice(steps, begin, min(begin + _APPENDED_STEPS, num_steps), slice(None)))


def _append_episodes(writer: DatasetWriter, datasets: Sequence[Dataset], extras: set[str], best: float) -> None:
    all_episodes = [find_episodes(dataset.steps) for dataset in datasets]
    returns = np.concatenate([episodes.returns for episodes in all_episodes])
    if not len(returns):
        raise UserError("no dataset has a whole episode")
    taken = np.zeros(len(returns), bool)
    taken[np.argsort(-returns, kind="stable")[: max(1, round(best * len(returns)))]] = True
    number = 0
    for dataset, episodes in zip(datasets, all_episodes, strict=True):
        steps = _with_extras(dataset.steps, extras)
        for row, begin, end in zip(episodes.row, episodes.begin, episodes.end, strict=True):
            if taken[number]:
                one = _slice(steps, begin, end, row)
                ends = bool(one.terminated[-1]), bool(one.truncated[-1])
                writer.append(episode_steps(one.observation, one.action, one.reward, ends, one.extras))  # pyright: ignore[reportArgumentType]
            number += 1


def _slice(steps: Trajectory, begin: int, end: int, rows: Any) -> Trajectory:
    """Returns steps `begin` to `end - 1` with the observation after them."""
    at, observed = (slice(begin, end), rows), (slice(begin, end + 1), rows)
    flags = {
        name: getattr(steps, name)[at] for name in ("reward", "terminated", "truncated", "valid", "policy_version")
    }
    return Trajectory(
        observation=take(steps.observation, observed),
        is_first=steps.is_first[observed],
        action=take(steps.action, at),
        extras={name: extra[at] for name, extra in steps.extras.items()},
        **flags,
    )
