"""The index of a model store: tags, notes and whether it is frozen, in one JSON file that one process at a time changes."""

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.run_directory import write_json

INDEX, LOCK = "index.json", ".lock"
_LOCK_SECONDS, _POLL_SECONDS = 10.0, 0.02


class LockedModelsError(UserError):
    """A store that its owner has frozen, or whose lock another process does not release."""


class Index(TypedDict):
    """Contents of the file.

    Attributes:
        tags: versions by tag.
        notes: values added to versions after they were saved, by version and name.
        is_frozen: whether the store rejects changes.
    """

    tags: dict[str, int]
    notes: dict[str, dict[str, Any]]
    is_frozen: bool


def read_index(directory: Path) -> Index:
    """Returns the index of a store; an empty one before the first change.

    Raises:
        UserError: If the file is not an index.
    """
    try:
        data = json.loads((directory / INDEX).read_text())
        return {"tags": dict(data["tags"]), "notes": dict(data["notes"]), "is_frozen": data["is_frozen"]}
    except FileNotFoundError:
        return {"tags": {}, "notes": {}, "is_frozen": False}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(
            f"{directory / INDEX} is no index of models ({error}): remove it, which removes all tags"
        ) from error


@contextlib.contextmanager
def change_index(directory: Path, unfreezes: bool = False) -> Iterator[Index]:
    """Gives the index to change, and writes it atomically afterwards; other processes wait meanwhile.

    Args:
        directory: Directory of the store.
        unfreezes: whether a frozen store may change.

    Raises:
        LockedModelsError: If the store is frozen.
    """
    with lock_store(directory):
        index = read_index(directory)
        if index["is_frozen"] and not unfreezes:
            raise LockedModelsError(f"the models in {directory} are frozen: clone them, or unfreeze them (--unfreeze)")
        yield index
        write_json(directory / INDEX, index)


@contextlib.contextmanager
def lock_store(directory: Path) -> Iterator[None]:
    """Waits for the lock of a store; the kernel releases it if the process ends. File systems without locks have none.

    Raises:
        LockedModelsError: another process holds it for too long.
    """
    directory.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + _LOCK_SECONDS
    with open(directory / LOCK, "a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise LockedModelsError(
                        f"another process holds the lock of the models in {directory} for more than {_LOCK_SECONDS:.0f} s: "
                        f"end it, or wait for it"
                    ) from error
                time.sleep(_POLL_SECONDS)
                continue
            except OSError:  # no locks; the lock of the run directory has warned
                pass
            break
        yield
