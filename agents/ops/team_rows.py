"""Conversion between the rows of a batch and the agents of each team."""

from typing import Any


def by_agent(count: int, axis: int, rows: Any) -> Any:
    """Returns [.., N, count, ...] of an array [.., N * count, ...] whose rows are at `axis`."""
    return rows.reshape((*rows.shape[:axis], -1, count, *rows.shape[axis + 1 :]))


def by_row(axis: int, agents: Any) -> Any:
    """Returns [.., N * count, ...] of an array [.., N, count, ...] whose environments are at `axis`."""
    return agents.reshape((*agents.shape[:axis], -1, *agents.shape[axis + 2 :]))
