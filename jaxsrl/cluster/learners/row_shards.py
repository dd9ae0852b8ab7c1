"""Rows of a checkpoint, split among learner processes and merged again: each process has contiguous rows, in order of process.

The names are those of `jaxsrl.training.run_state`. A checkpoint is that of one process with all rows. A run may therefore resume
with another number of processes; only the order of the last finished episodes, over which means are taken, differs.
"""

from collections.abc import Sequence

import numpy as np

from jaxsrl.checkpoints.names import EPISODES, LOG
from jaxsrl.checkpoints.store import Arrays
from jaxsrl.metrics.episodes import WINDOW

_RECENT, _TOTALS = EPISODES + "recent", (EPISODES + "count", EPISODES + "return_sum")
_LENGTHS, _ACTIONS = LOG + "lengths", LOG + "actions"


def row_arrays(arrays: Arrays) -> Arrays:
    """Returns the part of a checkpoint that belongs to rows."""
    return {name: value for name, value in arrays.items() if name.startswith((EPISODES, LOG))}


def merge_row_shards(shares: Sequence[Arrays]) -> Arrays:
    """Returns what one process with all rows would save, from the `row_arrays` of each process in order.

    Every array is [b, ...] of the process's rows but these: the last episodes, which are taken evenly from all, the totals over
    episodes, and the actions, which lie one row after the other.
    """
    names = dict.fromkeys(name for share in shares for name in share)
    joined = {
        name: np.concatenate([share[name] for share in shares if name in share])
        for name in names
        if name not in (_RECENT, *_TOTALS)
    }
    newest = [share[_RECENT][-(WINDOW // len(shares)) :] for share in shares]
    totals = {name: np.sum([share[name] for share in shares], axis=0) for name in _TOTALS}
    return {**joined, **totals, _RECENT: np.concatenate(newest)}


def row_shard(arrays: Arrays, process: int, processes: int) -> Arrays:
    """Returns a checkpoint with the process's rows of the arrays that belong to rows, and all other arrays whole.

    Args:
        arrays: Arrays of a checkpoint; without those of rows where environments restart.
        process: Id of the process.
        processes: Processes that share the rows evenly.
    """
    if _LENGTHS not in arrays:
        return dict(arrays)
    lengths = np.maximum(arrays[_LENGTHS], 0)
    num_rows = len(lengths)
    rows = slice(process * num_rows // processes, (process + 1) * num_rows // processes)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    played = slice(int(ends[rows.start]), int(ends[rows.stop]))
    shard = dict(arrays)
    for name, value in row_arrays(arrays).items():
        if name in _TOTALS:
            shard[name] = value if process == 0 else np.zeros_like(value)
        elif name == _RECENT:
            shard[name] = value[process::processes]
        else:
            shard[name] = value[played if name.startswith(_ACTIONS) else rows]
    return shard
