"""Writing of a dataset: steps are appended to one file per leaf, and whole shards are committed."""

import contextlib
import dataclasses
import io
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from agents.api import Trajectory
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import field_name
from envpool_bridge.spec.tree import items
from jaxsrl.checkpoints.run_directory import LOCK, lock_directory
from jaxsrl.datasets.manifest import MANIFEST, Manifest, Shard, is_observed, leaf_file, read_manifest, write_manifest

_SHARD_BYTES = 32 * 2**20


class DatasetWriter:
    """Appends steps to the files of a dataset. What is not committed when the process ends is lost; the rest stays whole.

    A leaf's file is a numpy file [S, R, ...]; those of observations and `is_first` have one value more. Consecutive steps of a
    row follow each other, as in a replay buffer. Thread-safety: one thread.

    Args:
        path: directory to create.
        manifest: Manifest of an empty dataset.
        shard_bytes: size of a shard, after which it is committed.

    Attributes:
        path: see above.
        manifest: Manifest of the committed steps.
        num_steps: number of steps of each row, committed or not.

    Raises:
        UserError: If the directory is there already, and is not empty.
    """

    def __init__(self, path: Path, manifest: Manifest, shard_bytes: int = _SHARD_BYTES) -> None:
        if path.exists() and any(path.iterdir()):
            raise UserError(
                f"expected a new directory for a dataset: {path} has files already; remove it, or name another"
            )
        path.mkdir(parents=True, exist_ok=True)
        self._begin(path, dataclasses.replace(manifest, shards=()), shard_bytes)

    @classmethod
    def reopen(cls, path: Path, num_steps: int | None = None, shard_bytes: int = _SHARD_BYTES) -> Self:
        """Returns a writer that continues a dataset.

        Args:
            path: Directory of the dataset.
            num_steps: steps of a row to keep, at least; later shards are dropped. None keeps all.
            shard_bytes: size of a shard.
        """
        manifest = read_manifest(path)
        shards = [shard for shard in manifest.shards if num_steps is None or shard.end <= num_steps]
        writer = cls.__new__(cls)
        writer._begin(path, dataclasses.replace(manifest, shards=tuple(shards)), shard_bytes)
        return writer

    def _begin(self, path: Path, manifest: Manifest, shard_bytes: int) -> None:
        self.path, self.manifest, self._shard_bytes = path, manifest, shard_bytes
        self._files = contextlib.ExitStack()
        self._leaves = {
            name: _LeafFile(path, name, *form, manifest.num_rows) for name, form in manifest.leaves().items()
        }
        self.num_steps = manifest.num_steps
        self._begins_segment = False
        self._failure: Exception | None = None
        for leaf in self._leaves.values():
            self._files.callback(leaf.close)
            leaf.read_last(self.num_steps)
        # Before the files: readers accept files that are longer than the manifest says, and none that is shorter.
        write_manifest(path, manifest)
        for leaf in self._leaves.values():
            leaf.start(self.num_steps)

    def append(self, steps: Trajectory) -> None:
        """Appends steps that follow the last; [T, R, ...] as in `agents.api.Trajectory`, numpy arrays. Frames are single.

        Raises:
            UserError: shapes or dtypes differ from the manifest's.
            OSError: this write failed, or an earlier one.
        """
        count = len(steps.reward)
        # Of stacked frames, those before the first step are in the file already.
        arrays = {name: array[-(count + is_observed(name)) :] for name, array in leaf_arrays(steps).items()}
        for name, leaf in self._leaves.items():
            leaf.validate(arrays.get(name), count)
        if self._begins_segment and not arrays["is_first"][0].all():
            # Its first stacks must not reach into the segment before.
            observed = {name: arrays[name][[0, 0]] for name in self._leaves if is_observed(name)}
            observed["is_first"][0] = True
            self._append_reset(observed)
        self._begins_segment = False
        with self._all_leaves():
            for name, leaf in self._leaves.items():
                leaf.append(arrays[name], count)
        self.num_steps += count
        if sum(leaf.num_new_bytes for leaf in self._leaves.values()) >= self._shard_bytes:
            self.commit()

    def end_segment(self) -> None:
        """Separates the steps so far from steps that do not follow them.

        Unless all rows have just been reset, a step that only resets is appended. The observation before it stays, and can be
        bootstrapped from. Episodes in progress get no end, so they do not count as whole. A step that only resets also precedes the
        next steps if they begin within an episode.
        """
        if not self.num_steps:
            return
        self._begins_segment = True
        observed = {name: np.stack([leaf.last] * 2) for name, leaf in self._leaves.items() if is_observed(name)}
        if observed["is_first"].all():
            return  # every row has just been reset
        observed["is_first"][1] = True
        self._append_reset(observed)

    def _append_reset(self, observed: dict[str, np.ndarray]) -> None:
        """Appends a step that only resets; `observed` has the values [2, R, ...] at it and after it of observed leaves."""
        with self._all_leaves():
            for name, leaf in self._leaves.items():
                leaf.append(observed[name] if is_observed(name) else np.zeros_like(leaf.last)[None], 1)
        self.num_steps += 1

    @contextlib.contextmanager
    def _all_leaves(self) -> Iterator[None]:
        """Runs a write of every leaf; nothing is committed after one that failed, since later steps would not fit each other."""
        self._check()
        try:
            yield
        except Exception as error:
            self._failure = error
            raise

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(f"{self.path}: an earlier write failed: {self._failure}") from self._failure

    def commit(self) -> None:
        """Makes all steps so far permanent; raises OSError if a write has failed."""
        self._check()
        if self.num_steps == self.manifest.num_steps:
            return
        checksums = {name: leaf.commit(self.num_steps) for name, leaf in self._leaves.items()}
        tails = {name: zlib.crc32(leaf.last.tobytes()) for name, leaf in self._leaves.items() if is_observed(name)}
        shards = (*self.manifest.shards, Shard(self.num_steps, checksums, tails))
        self.manifest = dataclasses.replace(self.manifest, shards=shards)
        write_manifest(self.path, self.manifest)

    def close(self) -> None:
        """Commits unless a write has failed, and closes the files; idempotent."""
        try:
            if self._failure is None:
                self.commit()
        finally:
            self._files.close()

    def __enter__(self) -> Self:
        """Returns the writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Closes the dataset; what was appended stays, also after an error."""
        self.close()


@contextlib.contextmanager
def make_dataset(path: Path, manifest: Manifest) -> Iterator[DatasetWriter]:
    """Gives the writer of a new dataset, which `path` contains when the block has ended without an error; see `make_directory`."""
    with make_directory(path) as directory, DatasetWriter(directory, manifest) as writer:
        yield writer


@contextlib.contextmanager
def make_directory(path: Path) -> Iterator[Path]:
    """Gives a directory to write a dataset into, which becomes `path` when the block has ended without an error.

    Until then it is `.NAME.partial/NAME` in the same place. The steps that an interrupted process committed there stay until the
    next call for this path.

    Raises:
        UserError: `path` is there and is no empty directory, or another process writes it.
    """
    try:
        path.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(
            f"expected a new directory for a dataset: {path} cannot be replaced ({error.strerror}); remove it, or name another"
        ) from error
    partial = path.with_name(f".{path.name}.partial")
    with lock_directory(partial, "dataset", "--out", "--out"):
        directory = partial / path.name
        if foreign := sorted({entry.name for entry in partial.iterdir()} - {LOCK, path.name}):
            raise UserError(
                f"{partial} is where a dataset is written and holds something else ({foreign[0]}): move it, or choose another --out"
            )
        if directory.exists():
            shutil.rmtree(directory)
        try:
            yield directory
            directory.rename(path)
        finally:
            if not is_dataset(directory) or not read_manifest(directory).num_steps:
                shutil.rmtree(partial)


def leaf_arrays(steps: Trajectory) -> dict[str, np.ndarray]:
    """Returns the arrays of steps by the names of a manifest's leaves."""
    named: dict[str, Any] = {f"extras/{name}": extra for name, extra in steps.extras.items()}
    for part in ("observation", "action"):
        named |= {field_name(part, path): leaf for path, leaf in items(getattr(steps, part))}
    flags = ("is_first", "reward", "terminated", "truncated", "valid", "policy_version")
    return named | {name: np.asarray(getattr(steps, name)) for name in flags}


def is_dataset(path: Path) -> bool:
    """Returns whether a directory holds a dataset."""
    return (path / MANIFEST).exists()


class _LeafFile:
    """One leaf's file, open for appending. It ends with the newest value of observed leaves.

    Attributes:
        last: [R, ...] newest value.
        num_new_bytes: bytes since the last commit.
    """

    def __init__(self, path: Path, name: str, dtype: str, shape: tuple[int, ...], num_rows: int) -> None:
        self.last: Any = np.zeros((num_rows, *shape), dtype)
        self.num_new_bytes = 0
        self._name, self._observed = name, is_observed(name)
        self._checksum = 0
        file = path / leaf_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(file, "r+b" if file.exists() else "w+b")  # noqa: SIM115  stays open for the dataset
        self._begin = len(self._header(0))

    def read_last(self, num_steps: int) -> None:
        """Reads the newest value of a file of `num_steps` steps."""
        if num_steps:
            self._file.seek(self._begin + (num_steps if self._observed else num_steps - 1) * self.last.nbytes)
            np.copyto(
                self.last, np.frombuffer(self._file.read(self.last.nbytes), self.last.dtype).reshape(self.last.shape)
            )

    def start(self, num_steps: int) -> None:
        """Continues after `num_steps` steps."""
        self._write_header(num_steps + self._observed if num_steps else 0)
        self._file.seek(self._begin + num_steps * self.last.nbytes)

    def validate(self, values: np.ndarray | None, count: int) -> None:
        """Raises UserError unless the values are those of `count` steps of this leaf."""
        expected = (count + self._observed, *self.last.shape), self.last.dtype
        actual = None if values is None else (values.shape, values.dtype)
        if actual != expected:
            raise UserError(
                f"dataset leaf {self._name}: expected {expected}, got {actual}; the manifest was made for others"
            )

    def append(self, values: np.ndarray, count: int) -> None:
        """Appends [count, R, ...], and of observed leaves one more, which the next call overwrites."""
        data = np.ascontiguousarray(values[:count]).data.cast("B") if values[:count].size else b""
        self._checksum = zlib.crc32(data, self._checksum)
        self._file.write(data)
        self.num_new_bytes += len(data)
        np.copyto(self.last, values[-1])

    def commit(self, num_steps: int) -> int:
        """Makes the file a whole numpy file of `num_steps` steps; returns the checksum of the new bytes."""
        end = self._file.tell()
        if self._observed:
            self._file.write(np.ascontiguousarray(self.last).data.cast("B"))
        self._file.truncate()
        self._write_header(num_steps + self._observed)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(end)
        checksum, self._checksum, self.num_new_bytes = self._checksum, 0, 0
        return checksum

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write_header(self, count: int) -> None:
        self._file.seek(0)
        self._file.write(self._header(count))

    def _header(self, count: int) -> bytes:
        # numpy pads the header so that the first axis can grow in place.
        header = io.BytesIO()
        form = {"descr": self.last.dtype.str, "fortran_order": False, "shape": (count, *self.last.shape)}
        np.lib.format.write_array_header_1_0(header, form)
        return header.getvalue()
