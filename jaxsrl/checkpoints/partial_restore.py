"""What fits of a checkpoint that was made for another network or another algorithm, for those who ask for it (`--partial`)."""

from collections.abc import Mapping

import numpy as np

from jaxsrl.checkpoints.store import Arrays

_MOST_SHOWN = 20


def restore_matching(
    saved: Mapping[str, np.ndarray], fresh: Mapping[str, np.ndarray], prefix: str
) -> tuple[Arrays, list[str]]:
    """The arrays of a fresh state, those of them replaced that a checkpoint has in the same name, shape and dtype.

    Args:
        saved: arrays of the checkpoint.
        fresh: all of the state's arrays, as they begin; their names begin with `prefix`.
        prefix: of the names that count.

    Returns:
        As many arrays as `fresh` has, and in words what of the two did not fit; both in the order of their names.
    """
    arrays: Arrays = {}
    left_out: list[str] = []
    for name, begun in fresh.items():
        found = saved.get(name)
        if found is not None and (found.shape, found.dtype) == (begun.shape, begun.dtype):
            arrays[name] = found
            continue
        arrays[name] = begun
        got = "is missing" if found is None else f"is {_form(found)}"
        left_out.append(f"{name}: expected {_form(begun)}, {got} in the checkpoint: begins as new")
    unknown = [name for name in saved if name.startswith(prefix) and name not in fresh]
    left_out += [f"{name}: {_form(saved[name])} in the checkpoint, not expected: left out" for name in unknown]
    return arrays, left_out


def format_report(arrays: Arrays, left_out: list[str]) -> str:
    """What `restore_matching` came to, a line each, the first few."""
    begun = sum("begins as new" in line for line in left_out)
    more = [f"... and {len(left_out) - _MOST_SHOWN} more"] if len(left_out) > _MOST_SHOWN else []
    head = f"partial restore: {len(arrays) - begun} of {len(arrays)} arrays fit the checkpoint's"
    return "\n  ".join([head + (":" if left_out else ""), *left_out[:_MOST_SHOWN], *more])


def _form(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"
