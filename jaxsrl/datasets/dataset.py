"""Reading of a dataset: its arrays as memory maps, its episodes and their returns, and verification of its files."""

import dataclasses
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import field_name
from envpool_bridge.spec.specs import SpecTree
from envpool_bridge.spec.tree import Tree, items, unflatten
from jaxsrl.datasets.manifest import CorruptDatasetError, Manifest, is_observed, leaf_file, read_manifest

_CHUNK_BYTES = 2**24


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Recorded steps.

    Attributes:
        path: directory.
        manifest: Contents of the dataset.
        steps: [S, R, ...] each leaf, and [S + 1, R, ...] observations and `is_first`, as a trajectory of memory-mapped arrays.
            Frames are single.
    """

    path: Path
    manifest: Manifest
    steps: Trajectory

    @property
    def num_valid_steps(self) -> int:
        """Number of env steps over all rows, without steps that only reset."""
        return int(np.count_nonzero(self.steps.valid))


@dataclasses.dataclass(frozen=True)
class Episodes:
    """Whole episodes of a dataset, [E] each, in the order of their ends.

    Attributes:
        row: row of the dataset.
        begin: first step.
        end: step after the last; `observation[end]` is the terminal observation.
        returns: float64 sum of rewards.
        truncated: whether the episode was cut.
    """

    row: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    returns: np.ndarray
    truncated: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each episode."""
        return self.end - self.begin


def open_dataset(path: Path) -> Dataset:
    """Opens a dataset; only its manifest is read.

    Raises:
        UserError: If the directory holds no dataset, or one without steps.
        CorruptDatasetError: If a file is missing, or has not the shape that the manifest says.
    """
    manifest = read_manifest(path)
    if not manifest.num_steps:
        raise UserError(
            f"{path} has no steps yet: expected a dataset with a whole shard, got a recording that has just started, or was "
            f"stopped before its first shard: wait for it, or record again"
        )
    arrays = {name: _open_leaf(path, name, manifest, *form) for name, form in manifest.leaves().items()}
    spec = manifest.spec
    extras: Any = {name: arrays.pop(f"extras/{name}") for name in manifest.extras}
    observation = _take_tree(arrays, "observation", spec.observation)
    action = _take_tree(arrays, "action", spec.action)
    flags: dict[str, Any] = arrays
    return Dataset(path, manifest, Trajectory(observation=observation, action=action, extras=extras, **flags))


def _take_tree(arrays: dict[str, Any], part: str, spec: SpecTree) -> Tree:
    return unflatten(spec, [arrays.pop(field_name(part, path)) for path, _ in items(spec)])


def _open_leaf(path: Path, name: str, manifest: Manifest, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    file = path / leaf_file(name)
    expected = (manifest.num_steps + is_observed(name), manifest.num_rows, *shape)
    try:
        array = np.load(file, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise CorruptDatasetError(f"{file} cannot be read: {error}") from error
    if len(array) < expected[0] or array.shape[1:] != expected[1:] or array.dtype != np.dtype(dtype):
        raise CorruptDatasetError(
            f"{file}: expected {dtype} {expected} as the manifest says, got {array.dtype} {array.shape}"
        )
    return array[: expected[0]]  # an interrupted recording may have left more


def find_damage(path: Path) -> Iterator[str]:
    """Yields a line for each damaged shard of each file, and for a damaged value after the last step; reads everything.

    Raises:
        UserError: If the directory holds no dataset.
        CorruptDatasetError: If a file is missing, or has not the shape that the manifest says.
    """
    manifest = open_dataset(path).manifest
    for name in manifest.leaves():
        array, begin = np.load(path / leaf_file(name), mmap_mode="r"), 0
        for number, shard in enumerate(manifest.shards):
            checksum, chunk = 0, max(1, _CHUNK_BYTES // max(1, array[0].nbytes))
            for start in range(begin, shard.end, chunk):
                part = np.ascontiguousarray(array[start : min(start + chunk, shard.end)])
                checksum = zlib.crc32(part.data.cast("B") if part.size else b"", checksum)
            if checksum != shard.checksums.get(name, checksum):
                yield f"{path / leaf_file(name)}: shard {number}, steps {begin} to {shard.end - 1} of each row, is damaged"
            begin = shard.end
        # Where the file is longer, a writer that was interrupted or is at work may have replaced the value.
        is_last = (path / leaf_file(name)).stat().st_size == array.offset + (begin + 1) * array[0].nbytes
        checksum = manifest.shards[-1].tails.get(name)
        if is_last and checksum is not None and checksum != zlib.crc32(array[begin].tobytes()):
            yield f"{path / leaf_file(name)}: the value after the last step of each row is damaged"


def find_episodes(steps: Trajectory) -> Episodes:
    """Returns the whole episodes in steps: those whose first and last step are there."""
    num_steps = len(steps.reward)
    acts, first = np.asarray(steps.valid), np.asarray(steps.is_first[:num_steps])
    last = (np.asarray(steps.terminated) | np.asarray(steps.truncated)) & acts
    ended: list[tuple[int, int, int]] = []
    for row in range(acts.shape[1]):
        begins, ends = np.flatnonzero(first[:, row]), np.flatnonzero(last[:, row])
        # A later end with the same beginning is that of an episode that began before its segment, as is an end without a beginning.
        place, number = np.unique(np.searchsorted(begins, ends, side="right") - 1, return_index=True)
        pairs = [(int(end), int(begins[at])) for end, at in zip(ends[number], place, strict=True) if at >= 0]
        ended += [(end, row, begin) for end, begin in pairs if acts[begin, row]]
    ended.sort()
    ends, rows, begins = (
        (np.array(column, int) for column in zip(*ended, strict=True)) if ended else [np.zeros(0, int)] * 3
    )
    reward = np.asarray(steps.reward, np.float64) * acts
    returns = np.array([reward[begin : end + 1, row].sum() for end, row, begin in zip(ends, rows, begins, strict=True)])
    return Episodes(rows, begins, ends + 1, returns, np.asarray(steps.truncated)[ends, rows])


def describe(dataset: Dataset) -> dict[str, Any]:
    """Returns sizes, origin and returns of a dataset as JSON data."""
    manifest, episodes = dataset.manifest, find_episodes(dataset.steps)
    returns = episodes.returns
    statistics = {}
    if len(returns):
        statistics = {
            "mean_return": float(returns.mean()),
            "std_return": float(returns.std()),
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "mean_length": float(episodes.lengths.mean()),
            "normalized_score": manifest.normalized_score(float(returns.mean())),
        }
    return {
        "env_id": manifest.spec.env_id,
        "env_steps": dataset.num_valid_steps,
        "episodes": len(returns),
        "rows": manifest.num_rows,
        "shards": len(manifest.shards),
        "bytes": sum((dataset.path / leaf_file(name)).stat().st_size for name in manifest.leaves()),
        **statistics,
        "score_random": manifest.score_random,
        "score_expert": manifest.score_expert,
        "origin": dict(manifest.origin),
    }
