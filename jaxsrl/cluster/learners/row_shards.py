"""What a checkpoint holds of rows, from the processes that step them, and back: each has a contiguous share, in order of process.

The names are those of `jaxsrl.training.run_state`. A checkpoint is that of one process with all rows, so that a run may go on with
another number of processes; only the order of the last finished episodes, over which means are taken, is another.
"""

from collections.abc import Sequence

import numpy as np

from jaxsrl.checkpoints.names import EPISODES, LOG
from jaxsrl.metrics.episodes import WINDOW

Arrays = dict[str, np.ndarray]
_RECENT, _COUNT = EPISODES + "recent", EPISODES + "count"
_LENGTHS, _ACTIONS = LOG + "lengths", LOG + "actions"


def of_rows(arrays: Arrays) -> Arrays:
    """The part of a checkpoint that belongs to rows."""
    return {name: value for name, value in arrays.items() if name.startswith((EPISODES, LOG))}


def merged(shares: Sequence[Arrays]) -> Arrays:
    """What one process with all rows would save: `of_rows` of each process, in order.

    Every array is [b, ...] of the process's rows but three: the last episodes, which are taken evenly from all, their number, and
    the actions, which lie one row after the other.
    """
    names = dict.fromkeys(name for share in shares for name in share)
    found = {
        name: np.concatenate([share[name] for share in shares if name in share])
        for name in names
        if name not in (_RECENT, _COUNT)
    }
    newest = [share[_RECENT][-(WINDOW // len(shares)) :] for share in shares]
    return {**found, _RECENT: np.concatenate(newest), _COUNT: np.array(sum(int(share[_COUNT]) for share in shares))}


def share_of(arrays: Arrays, process: int, processes: int) -> Arrays:
    """Returns a checkpoint with the process's rows of the arrays that belong to rows, and all other arrays whole.

    Args:
        arrays: of a checkpoint; without those of rows where environments restart.
        process: its id.
        processes: that share the rows evenly.
    """
    if _LENGTHS not in arrays:
        return dict(arrays)
    lengths = np.maximum(arrays[_LENGTHS], 0)
    num_rows = len(lengths)
    rows = slice(process * num_rows // processes, (process + 1) * num_rows // processes)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    played = slice(int(ends[rows.start]), int(ends[rows.stop]))
    found = dict(arrays)
    for name, value in of_rows(arrays).items():
        if name == _COUNT:
            found[name] = value if process == 0 else np.zeros_like(value)
        elif name == _RECENT:
            found[name] = value[process::processes]
        else:
            found[name] = value[played if name.startswith(_ACTIONS) else rows]
    return found
