"""Partial restore of checkpoints of another network or algorithm (`--partial`)."""

from collections.abc import Mapping

import numpy as np

from jaxsrl.checkpoints.store import Arrays

MOST_SHOWN = 20


def restore_matching(
    saved: Mapping[str, np.ndarray], fresh: Mapping[str, np.ndarray], prefix: str
) -> tuple[Arrays, list[str]]:
    """Returns the arrays of a fresh state, replaced by those of a checkpoint with the same name, shape and dtype.

    Args:
        saved: arrays of the checkpoint.
        fresh: initial arrays of the state; their names start with `prefix`.
        prefix: prefix of the compared names.

    Returns:
        The same arrays as `fresh`, and a line for each mismatch; both in the order of their names.
    """
    arrays: Arrays = {}
    skipped: list[str] = []
    for name, initial in fresh.items():
        stored = saved.get(name)
        if stored is not None and (stored.shape, stored.dtype) == (initial.shape, initial.dtype):
            arrays[name] = stored
            continue
        arrays[name] = initial
        got = "is missing" if stored is None else f"is {array_form(stored)}"
        skipped.append(f"{name}: expected {array_form(initial)}, {got} in the checkpoint: starts as new")
    unknown = [name for name in saved if name.startswith(prefix) and name not in fresh]
    skipped += [f"{name}: {array_form(saved[name])} in the checkpoint, not expected: skipped" for name in unknown]
    return arrays, skipped


def format_report(arrays: Arrays, skipped: list[str]) -> str:
    """Returns a summary of `restore_matching` with the first few mismatches, one line each."""
    num_initial = sum("starts as new" in line for line in skipped)
    return list_some(
        f"partial restore: {len(arrays) - num_initial} of {len(arrays)} arrays fit the checkpoint's", skipped
    )


def list_some(head: str, lines: list[str]) -> str:
    """Returns a heading with the first few of these lines below it."""
    more = [f"... and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
    return "\n  ".join([head + (":" if lines else ""), *lines[:MOST_SHOWN], *more])


def array_form(array: np.ndarray) -> str:
    """Returns dtype and shape, such as "float32[4, 2]"."""
    return f"{array.dtype}{list(array.shape)}"
