"""Closing of several environments, none of which may keep the others from being closed."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol


class Closes(Protocol):
    """Owner of resources."""

    def close(self) -> None:
        """Releases the resources."""
        ...


@contextlib.contextmanager
def closed_on_error() -> Iterator[list[Any]]:
    """Gives an empty list of owners. If the block raises, closes those that are in it by then, and raises the same exception."""
    owners: list[Any] = []
    try:
        yield owners
    except BaseException:
        with contextlib.suppress(Exception):  # the first exception matters more
            close_each(owners)
        raise


def close_each(owners: Iterable[Closes]) -> None:
    """Closes each owner, whatever the others raise.

    Raises:
        Exception: If the first one that an owner raised, after all have been closed.
    """
    first: Exception | None = None
    for owner in owners:
        try:
            owner.close()
        except Exception as error:  # noqa: BLE001  raised below
            first = error if first is None else first
    if first is not None:
        raise first
