"""Checkpoint store: an Orbax directory with a manifest that proves it intact.

`checkpoints/<updates>/` holds `state/` (Orbax), experience in a file of its own and `MANIFEST.json`: sha256 of every file, shape
and dtype of every array, versions of the writers, the run's metadata, and a sha256 of all that. Everything is written under a
temporary name, synced to disk and renamed: a directory whose name is a number is complete. Restoring tries the newest first until
one verifies. Damaged ones are moved to `quarantine/`. Only the newest one keeps its experience. Nothing is pickled, so reading a
checkpoint runs no code from it. Its metadata name an agent and an environment; `jaxsrl.evaluation.load_agent` decides what may be
made from those names.
"""

import contextlib
import ctypes
import errno
import functools
import itertools
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.experience import map_experience, write_experience
from jaxsrl.checkpoints.manifest import (
    EXPERIENCE,
    FORMAT,
    MANIFEST,
    UNFINISHED,
    CorruptCheckpointError,
    file_sha256,
    is_checkpoint,
    list_files,
    list_steps,
    read_manifest,
    sign_manifest,
    verify_files,
)
from jaxsrl.checkpoints.names import REPLAY
from jaxsrl.checkpoints.schema import (
    Form,
    read_form,
    reject_links,
    validate_manifest,
    validate_match,
    validate_stored_arrays,
)
from jaxsrl.machine.package_names import find_version

_REPLACED = ".replaced.tmp"
_READ_SECONDS = 30.0
_POLL_SECONDS = 0.05
WRITTEN_BY = ("jaxsrl", "jax", "numpy", "orbax-checkpoint")
Arrays = dict[str, np.ndarray]
ValidateFn = Callable[[Mapping[str, Form]], None]
Restored = tuple[int, Arrays, dict[str, Any], list[str]]
"""Step, arrays, metadata and problems of newer checkpoints."""


class RemovedCheckpointError(UserError):
    """Checkpoint that another process removed or replaced while it was read."""


class CheckpointSaveError(Exception):
    """Checkpoint that could not be written; earlier ones are unchanged."""

    @property
    def is_disk_full(self) -> bool:
        """Returns whether the disk or a quota has no room."""
        return any(os.strerror(number) in str(self) for number in (errno.ENOSPC, errno.EDQUOT))


def flatten(tree: Any, prefix: str) -> Arrays:
    """Returns a pytree's leaves as numpy arrays, named by their path; typed PRNG keys must be given as their data."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {f"{prefix}{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}


def leaf_forms(tree: Any, prefix: str) -> dict[str, Form]:
    """Returns shape and dtype of every leaf, of arrays or of `jax.eval_shape` results, named as in `flatten`."""
    forms = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else np.asarray(leaf), tree)
    leaves = jax.tree_util.tree_flatten_with_path(forms)[0]
    return {f"{prefix}{jax.tree_util.keystr(path)}": (tuple(leaf.shape), np.dtype(leaf.dtype)) for path, leaf in leaves}


def unflatten(template: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> Any:
    """Rebuilds the pytree of `template`'s structure from the result of `flatten`.

    Raises:
        UserError: leaves are missing, of another shape or dtype, or unexpected; all are listed.
    """
    wanted = leaf_forms(template, prefix)
    validate_match(wanted, {name: (array.shape, array.dtype) for name, array in arrays.items()}, prefix)
    return jax.tree.unflatten(jax.tree.structure(template), [arrays[name] for name in wanted])


class CheckpointStore:
    """Checkpoints of one run. One writer: the process that holds the run directory's lock.

    Args:
        directory: directory of the checkpoints.
        keep: number of newest checkpoints to keep.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        self.directory = directory
        self._keep = keep

    def steps(self) -> list[int]:
        """Returns the updates of complete checkpoints, oldest first."""
        return list_steps(self.directory)

    def save(self, step: int, arrays: Arrays, metadata: Mapping[str, Any]) -> Path:
        """Writes a checkpoint, which is durable when this returns, and removes old ones.

        Raises:
            CheckpointSaveError: If the disk is full or read-only, for example; older checkpoints are unchanged.
        """
        try:
            path = self._save(step, arrays, metadata)
        except Exception as error:  # on a full disk, Orbax raises other errors than OSError
            self._remove_unfinished()
            kept = self.steps()
            newest = f"the newest is that of update {kept[-1]}" if kept else "there is none yet"
            raise CheckpointSaveError(
                f"the checkpoint of update {step} could not be written to {self.directory} ({type(error).__name__}: {error}); "
                f"{newest}"
            ) from error
        steps = self.steps()
        if len(steps) > self._keep:  # directories of others that have numbers as names do not count
            steps = [each for each in steps if is_checkpoint(self.directory / str(each))]
        self.remove(*steps[: -self._keep])
        if (path / EXPERIENCE).exists():
            for each in {*steps[-self._keep :]} - {step}:
                self._remove_experience(each)
        return path

    def replace_all(self, step: int, arrays: Arrays, metadata: Mapping[str, Any]) -> None:
        """Writes a checkpoint, whatever its number is, and removes all others; raises as `save`."""
        CheckpointStore(self.directory, len(self.steps()) + 1).save(step, arrays, metadata)
        self.remove(*(each for each in self.steps() if each != step))

    def remove(self, *steps: int) -> list[int]:
        """Deletes checkpoints, and nothing else that has a step as name; returns the steps of those that it deleted.

        Failed deletions are repeated at the next save.
        """
        removed: list[int] = []
        # They are renamed before, so that a partly deleted one is never restored.
        for step in steps:
            with contextlib.suppress(OSError):
                if is_checkpoint(path := self.directory / str(step)):
                    path.rename(self._unfinished(step))
                    removed.append(step)
        self._remove_unfinished()
        return removed

    def _save(self, step: int, arrays: Arrays, metadata: Mapping[str, Any]) -> Path:
        final, temporary = self.directory / str(step), self._unfinished(step)
        self.directory.mkdir(parents=True, exist_ok=True)
        _sync(self.directory.parent)
        self._remove_unfinished()
        temporary.mkdir()
        _write_state(temporary / "state", arrays)
        files = {name: file_sha256(temporary / name) for name in list_files(temporary)}
        if experience := {name: x for name, x in arrays.items() if name.startswith(REPLAY)}:
            files[EXPERIENCE] = write_experience(temporary / EXPERIENCE, experience)
        manifest = {
            "format": FORMAT,
            "step": step,
            "files": files,
            "schema": {name: {"shape": list(x.shape), "dtype": x.dtype.name} for name, x in arrays.items()},
            "versions": dict(_read_versions()),
            "metadata": dict(metadata),
        }
        with open(temporary / MANIFEST, "w") as file:
            file.write(sign_manifest(manifest))
            file.flush()
            os.fsync(file.fileno())
        _sync_all(temporary)
        if final.exists():
            if not is_checkpoint(final):
                raise FileExistsError(f"{final} is no checkpoint: move it")
            final.rename(self.directory / f".{step}{_REPLACED}")
        temporary.rename(final)
        _sync(self.directory)
        return final

    def _remove_experience(self, step: int) -> None:
        """Deletes the experience of a checkpoint of the run."""
        with contextlib.suppress(OSError):
            if is_checkpoint(path := self.directory / str(step)):
                (path / EXPERIENCE).unlink(missing_ok=True)

    def _unfinished(self, step: int) -> Path:
        return self.directory / f".{step}.tmp"

    def _put_back_replaced(self) -> None:
        """Renames checkpoints back if their replacements were not completed."""
        for path in self.directory.glob(f".*{_REPLACED}"):
            final = self.directory / path.name[1:].removesuffix(_REPLACED)
            if not final.exists():
                path.rename(final)

    def _remove_unfinished(self) -> None:
        self._put_back_replaced()
        for path in self.directory.glob(".*.tmp"):
            if UNFINISHED.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)

    def restore_newest(self, validate: ValidateFn | None = None, last: int | None = None) -> Restored | None:
        """Restores the newest checkpoint that verifies: step, arrays, metadata, problems of newer ones; None without checkpoints.

        Damaged ones are moved to quarantine.

        Args:
            validate: see `load_checkpoint`.
            last: the last step that is considered; None for all.

        Raises:
            UserError: all checkpoints are damaged, or one has another format; or the error of `validate`.
        """
        self._put_back_replaced()
        load = functools.partial(_load_of_store, validate=validate)
        return self._find_whole(load, lambda path, error: f"{error}; moved to {self._quarantine(path)}", last)

    def read_newest(self) -> Restored | None:
        """Returns what `restore_newest` restores, and changes nothing; another process may save and remove meanwhile.

        A checkpoint whose replacement a crash has interrupted is not read.

        Raises:
            UserError: If `restore_newest` raises it, or checkpoints were removed before they were read, for 30 s.
        """
        end = time.monotonic() + _READ_SECONDS
        while True:
            try:
                return self._find_whole(load_in_use, lambda path, error: str(error))
            except RemovedCheckpointError as removed:
                if time.monotonic() > end:
                    raise UserError(
                        f"the run removes its checkpoints in {self.directory} faster than they can be read: save less often "
                        f"(--checkpoint.interval-updates), keep more (--checkpoint.max-to-keep), or wait for its end"
                    ) from removed
                time.sleep(_POLL_SECONDS)

    def _find_whole(
        self,
        load: Callable[[Path], tuple[Arrays, dict[str, Any]]],
        on_damage: Callable[[Path, CorruptCheckpointError], str],
        last: int | None = None,
    ) -> Restored | None:
        """Returns the newest checkpoint that `load` loads, with what `on_damage` says of newer ones; None without any.

        Raises:
            UserError: all are damaged, without a limit `last`.
        """
        problems: list[str] = []
        for step in reversed([step for step in self.steps() if last is None or step <= last]):
            path = self.directory / str(step)
            try:
                arrays, metadata = load(path)
            except CorruptCheckpointError as error:
                problems.append(on_damage(path, error))
                continue
            return step, arrays, metadata, problems
        if problems and last is None:
            raise UserError("no checkpoint of this run is whole:\n  " + "\n  ".join(problems))
        return None

    def _quarantine(self, path: Path) -> Path:
        quarantine = self.directory / "quarantine"
        quarantine.mkdir(exist_ok=True)
        used = {entry.name for entry in quarantine.iterdir()}
        path.rename(quarantine / next(name for n in itertools.count() if (name := f"{path.name}-{n}") not in used))
        return quarantine


def load_in_use(path: Path, with_experience: bool = False) -> tuple[Arrays, dict[str, Any]]:
    """Returns what `load_checkpoint` returns, of a checkpoint of a run that may train.

    Raises:
        RemovedCheckpointError: If the run removed or replaced it, or its experience, meanwhile.
        CorruptCheckpointError: If it is damaged.
        UserError: If it has another format.
    """
    inode, had_experience = _inode(path), (path / EXPERIENCE).exists()
    try:
        return _load_of_store(path, with_experience=with_experience)
    except (CorruptCheckpointError, UserError, OSError) as error:
        if inode is None or _inode(path) != inode or had_experience != (path / EXPERIENCE).exists():
            raise RemovedCheckpointError(f"{path} was removed or replaced while it was read") from error
        raise


def _load_of_store(
    path: Path, validate: ValidateFn | None = None, with_experience: bool = True
) -> tuple[Arrays, dict[str, Any]]:
    if not (path / MANIFEST).is_file():
        raise CorruptCheckpointError(f"{path}: {MANIFEST} is missing")
    return load_checkpoint(path, validate, with_experience)


def load_checkpoint(
    path: Path, validate: ValidateFn | None = None, with_experience: bool = True
) -> tuple[Arrays, dict[str, Any]]:
    """Returns arrays and metadata of one checkpoint directory, verified.

    Args:
        path: the directory.
        validate: raises if the arrays, by name, do not have the expected shapes and dtypes; called before they are read.
        with_experience: Whether to return experience, as read-only views of its file, if the checkpoint still has it.

    Raises:
        UserError: If the path is no checkpoint.
        CorruptCheckpointError: If a file is missing, added or changed, or is a special file; or the manifest and the files
            disagree.
    """
    manifest = read_manifest(path)
    validate_manifest(path, manifest)
    reject_links(path)
    schema = {name: read_form(f"{path}: array {name}", form) for name, form in manifest["schema"].items()}
    verify_files(path, manifest, with_experience)
    has_experience = with_experience and (path / EXPERIENCE).exists()
    experience = {name: form for name, form in schema.items() if name.startswith(REPLAY)}
    state = {name: form for name, form in schema.items() if name not in experience}
    if validate is not None:
        validate(schema if has_experience else state)
    mapped = map_experience(path / EXPERIENCE, experience) if has_experience else {}
    return {**_read_arrays(path, state), **mapped}, manifest["metadata"]


@functools.cache  # 20 ms of searching for packages
def _read_versions() -> tuple[tuple[str, str], ...]:
    return tuple((name, find_version(name)) for name in WRITTEN_BY)


def _write_state(path: Path, arrays: Arrays) -> None:
    """Writes all arrays but experience by Orbax. It cannot store those without elements; the schema has their shape and dtype."""
    checkpointer = _make_checkpointer()
    checkpointer.save(path.resolve(), {name: x for name, x in arrays.items() if x.size and not name.startswith(REPLAY)})
    checkpointer.close()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc keeps Orbax's buffers otherwise
        trim(0)


def _make_checkpointer() -> ocp.Checkpointer:
    """Returns a checkpointer of this process alone. Orbax's default waits for all processes that jax has joined."""
    if not jax.distributed.is_initialized():
        return ocp.PyTreeCheckpointer()
    this = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=this, active_processes={this}, barrier_sync_key_prefix=f"jaxsrl-{this}"
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


def _inode(path: Path) -> int | None:
    """Returns a number that no other checkpoint of this name has; None without a checkpoint."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def _read_arrays(path: Path, schema: Mapping[str, Form]) -> Arrays:
    checkpointer, state = _make_checkpointer(), path.resolve() / "state"
    try:
        validate_stored_arrays(path, schema, state, checkpointer)
        stored = checkpointer.restore(state)
    except (CorruptCheckpointError, UserError):
        raise
    except Exception as error:  # Orbax raises various errors for foreign files
        raise CorruptCheckpointError(f"{path}: the arrays cannot be read ({type(error).__name__}: {error})") from error
    finally:
        checkpointer.close()
    return {
        name: np.asarray(stored[name]) if name in stored else np.zeros(shape, dtype)
        for name, (shape, dtype) in schema.items()
    }


def _sync_all(directory: Path) -> None:
    """Syncs a directory and its contents to disk: after a power failure, a renamed directory must be complete."""
    for path in sorted(directory.rglob("*")):
        _sync(path)
    _sync(directory)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
