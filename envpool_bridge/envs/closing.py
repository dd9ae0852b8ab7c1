"""Closing of several environments, none of which may keep the others from being closed."""

from collections.abc import Iterable
from typing import Protocol


class Closes(Protocol):
    """Owner of resources."""

    def close(self) -> None:
        """Releases the resources."""
        ...


def close_each(owners: Iterable[Closes]) -> None:
    """Closes each owner, whatever the others raise.

    Raises:
        Exception: the first one that an owner raised, after all have been closed.
    """
    first: Exception | None = None
    for owner in owners:
        try:
            owner.close()
        except Exception as error:  # noqa: BLE001  raised below
            first = error if first is None else first
    if first is not None:
        raise first
