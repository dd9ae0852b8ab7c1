"""Versions of the learner state of a run, which other processes find by number, tag or query (SRL's parameter service)."""

import contextlib
import dataclasses
import operator
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.manifest import STEP as NUMBER
from jaxsrl.checkpoints.manifest import CorruptCheckpointError, is_checkpoint, read_manifest
from jaxsrl.checkpoints.store import Arrays, CheckpointStore, load_checkpoint
from jaxsrl.models.index import Index, change_index, lock_store, read_index

MODELS = "models"
"""Directory of a run directory with its store."""

NEWEST, BEST = "newest", "best"
STEP, PENDING = "step-", "pending-"
"""Prefixes of the tags of a run: of versions at multiples of env steps, and of those that wait for their evaluation."""
RETURN = "return"
"""Note of a version that a run has evaluated."""
_OF_RUNS = re.compile(rf"{BEST}|(?:{STEP}|{PENDING})\d+")
_HOW_SAVED = "--eval.every and --checkpoint.keep-every save them"
_POLL_SECONDS = 0.02
_TAG = re.compile(r"[A-Za-z][\w.:-]*")
_CONDITION = re.compile(r"(\w+)\s*(<=|>=|<|>|=)\s*(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
DAMAGE = "damage"
"""Metadata of a version whose manifest cannot be read: why."""


@dataclasses.dataclass(frozen=True)
class Model:
    """One version.

    Attributes:
        version: updates done by then.
        path: Directory of the model, which has the format of a checkpoint.
        tags: names that point to it, sorted.
        metadata: Metadata of its checkpoint, such as `env_steps`, with the notes that were added later, such as `return`.
    """

    version: int
    path: Path
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @property
    def env_steps(self) -> int:
        """Env steps trained by then."""
        return int(self.metadata.get("env_steps", 0))


class ModelStore(CheckpointStore):
    """The versions in a directory. Process-safety: any number of processes read and write; each change is atomic.

    A process that is killed at any moment leaves every tagged version whole. Nothing tagged is ever deleted, but by `abandon` what
    only the run itself has tagged.

    Args:
        directory: Directory of the store; made with the first version.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, keep=1 << 62)

    def save(
        self, step: int, arrays: Arrays, metadata: Mapping[str, Any], tags: Sequence[str] = (), **notes: Any
    ) -> Path:
        """Saves a version unless it is there, and tags it.

        Args:
            step: updates done.
            arrays: learner state by name, as checkpoints hold it.
            metadata: Metadata of the checkpoint.
            tags: names that point to it from now on.
            **notes: values by name; see `annotate`.

        Raises:
            UserError: If the store is frozen, or a name is no tag.
            CheckpointSaveError: If it could not be written.
        """
        for tag in tags:
            _validate_tag(tag)
        with change_index(self.directory) as index:
            if not is_checkpoint(self.directory / str(step)):
                super().save(step, arrays, metadata)
            index["tags"] |= dict.fromkeys(tags, step)
            if notes:
                index["notes"].setdefault(str(step), {}).update(notes)
        return self.directory / str(step)

    def tag(self, name: str, query: str) -> Model:
        """Makes a tag point to the version that a query finds.

        Raises:
            UserError: If there is no such version, the store is frozen, or the name is no tag.
        """
        _validate_tag(name)
        with change_index(self.directory) as index:
            model = self._find(query, index)
            index["tags"][name] = model.version
        return dataclasses.replace(model, tags=tuple(sorted({*model.tags, name})))

    def untag(self, name: str) -> None:
        """Removes a tag; its version may then be collected.

        Raises:
            UserError: If there is no such tag, or the store is frozen.
        """
        with change_index(self.directory) as index:
            if name not in index["tags"]:
                raise UserError(f"no tag {name!r} in {self.directory}: its tags are {_listed(index['tags'])}")
            del index["tags"][name]

    def annotate(self, version: int, **notes: Any) -> None:
        """Adds values to a version, by which queries find it.

        Raises:
            UserError: If there is no such version, or the store is frozen.
        """
        with change_index(self.directory) as index:
            self._find(str(version), index)
            index["notes"].setdefault(str(version), {}).update(notes)

    def tags(self) -> dict[str, int]:
        """Returns the versions by tag."""
        return dict(read_index(self.directory)["tags"])

    def noted(self, name: str) -> set[int]:
        """Returns the versions with a note of this name."""
        return {int(version) for version, notes in read_index(self.directory)["notes"].items() if name in notes}

    def models(self) -> list[Model]:
        """Returns all versions, oldest first."""
        index = read_index(self.directory)
        return [model for version in self.steps() if (model := self._read(version, index)) is not None]

    def find(self, query: str) -> Model:
        """Returns a version.

        Args:
            query: a number of updates, "newest", a tag such as "best", or a condition on metadata such as "return>200",
                of which the newest version that meets it is returned.

        Raises:
            UserError: If there is none; lists the tags.
        """
        return self._find(query, read_index(self.directory))

    def load(self, query: str) -> tuple[Model, Arrays]:
        """Returns a version and its arrays, verified.

        Raises:
            UserError: If there is none.
            CorruptCheckpointError: If it is damaged.
        """
        while True:
            model = self.find(query)
            try:
                arrays, _ = load_checkpoint(model.path)
            except (OSError, UserError, CorruptCheckpointError):
                if model.path.exists():
                    raise
                continue  # another process deleted it meanwhile: the query finds another version, or none
            return model, arrays

    def wait_newer(self, version: int, timeout_seconds: float) -> Model | None:
        """Waits for a version newer than `version`; returns the newest, or None after `timeout_seconds` without one."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            newest = max(self.steps(), default=-1)
            if newest > version and (model := self._read(newest, read_index(self.directory))) is not None:
                return model
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_SECONDS)

    def collect_garbage(self, keep: int) -> list[int]:
        """Deletes all versions without a tag but the newest `keep`; returns the deleted ones.

        Raises:
            UserError: If the store is frozen, or `keep` is negative.
        """
        if keep < 0:
            raise UserError(f"expected a number of models to keep from 0: got {keep}")
        with change_index(self.directory) as index:
            tagged = set(index["tags"].values())
            free = [version for version in self.steps() if version not in tagged]
            collected = free[: max(0, len(free) - keep)]
            collected = self.remove(*collected)
            for version in collected:
                index["notes"].pop(str(version), None)
        return collected

    def abandon(self, last: int) -> list[int]:
        """Removes all versions after `last`, to which learning has returned, with the tags of the run; returns the removed ones.

        A version with another tag stays under that tag, without its notes.

        Raises:
            UserError: If the store is frozen.
        """
        if not self.directory.is_dir():
            return []
        with change_index(self.directory) as index:
            tags = index["tags"]
            index["tags"] = {tag: at for tag, at in tags.items() if at <= last or not _OF_RUNS.fullmatch(tag)}
            index["notes"] = {at: notes for at, notes in index["notes"].items() if int(at) <= last}
        # After the index is written: a process that is killed here leaves no tag without a version.
        with change_index(self.directory) as index:
            chosen = set(index["tags"].values())
            abandoned = [version for version in self.steps() if version > last and version not in chosen]
            return self.remove(*abandoned)

    def clone(self, destination: Path, query: str = "") -> "ModelStore":
        """Copies one version, or all, with their tags into a new store, and returns that.

        Args:
            destination: directory that does not exist.
            query: Query of one version; "" for all.

        Raises:
            UserError: If the destination exists, or no version is found.
        """
        if destination.exists():
            raise UserError(f"cannot clone into {destination}: it exists; choose another directory")
        if not self.steps():
            raise UserError(f"nothing to clone: {self.directory} holds no models; {_HOW_SAVED}")
        destination.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=destination.parent, prefix=f".{destination.name}.") as temporary,
            lock_store(self.directory),
        ):
            partial = Path(temporary) / destination.name
            models = [self.find(query)] if query else self.models()
            for model in models:
                shutil.copytree(model.path, partial / str(model.version))
            with change_index(partial) as index:
                for model in models:
                    index["tags"] |= dict.fromkeys(model.tags, model.version)
                index["notes"] = {
                    version: notes
                    for version, notes in read_index(self.directory)["notes"].items()
                    if int(version) in {model.version for model in models}
                }
            partial.rename(destination)
        return ModelStore(destination)

    def freeze(self, is_frozen: bool = True) -> None:
        """Makes the store reject all changes, or accept them again."""
        with change_index(self.directory, unfreezes=True) as index:
            index["is_frozen"] = is_frozen

    def _find(self, query: str, index: Index) -> Model:
        steps, condition = self.steps(), _CONDITION.fullmatch(query)
        if query in index["tags"]:
            wanted = [index["tags"][query]]
        elif query == NEWEST:
            wanted = steps[-1:]
        elif NUMBER.fullmatch(query):
            wanted = [int(query)]
        else:
            wanted = steps[::-1] if condition else []
        for version in wanted:
            model = self._read(version, index) if version in steps else None
            if model and (condition is None or _meets(model, *condition.groups())):
                return model
        if not steps:
            raise UserError(f"no model {query!r}: {self.directory} holds none; {_HOW_SAVED}")
        raise UserError(
            f"no model {query!r} in {self.directory}: its tags are {_listed(index['tags'])}, its "
            f"versions {_listed(steps)}; also possible: {NEWEST!r}, or a condition such as 'return>200'"
        )

    def _read(self, version: int, index: Index) -> Model | None:
        """Returns a version; None if another process has just deleted it. The metadata of a damaged one says so."""
        path = self.directory / str(version)
        try:
            metadata = read_manifest(path)["metadata"]
        except (OSError, UserError):
            return None
        except CorruptCheckpointError as error:
            metadata = {DAMAGE: str(error)}  # the others must still be found; `load` raises for this one
        tags = tuple(sorted(tag for tag, target in index["tags"].items() if target == version))
        return Model(version, path, tags, {**metadata, **index["notes"].get(str(version), {})})


def _meets(model: Model, name: str, comparison: str, value: str) -> bool:
    number = float(value)
    with contextlib.suppress(KeyError, TypeError):
        return _COMPARE[comparison](model.metadata[name], number)
    return False


def _validate_tag(name: str) -> None:
    if not _TAG.fullmatch(name) or name == NEWEST:
        raise UserError(
            f"a tag is a letter followed by letters, digits and -_.: (not {NEWEST!r}, which is always the newest): got {name!r}"
        )


def _listed(names: Any) -> str:
    return ", ".join(str(name) for name in names) or "none"
