"""Learning curve of a run at fixed steps."""

import numpy as np

from envpool_bridge.errors import UserError
from jaxsrl.metrics.record_file import RecordFile

POINTS = 100
_COUNT, _SUM = "episode/count", "episode/return_sum"


def training_curve(records: RecordFile) -> tuple[list[int], list[float]]:
    """Returns env steps and mean training returns of a run at `POINTS` equal distances; see `bin_returns`.

    Raises:
        UserError: If no episode has ended, or the records lack the totals of returns.
    """
    columns = records.columns
    if not {"env_steps", _COUNT, _SUM} <= set(columns):
        raise UserError(f"the records have no {_SUM}: the run finished no episode, or an older version wrote them")
    steps, counts, sums = (np.array(columns[name], np.float64) for name in ("env_steps", _COUNT, _SUM))
    return bin_returns(steps, np.nan_to_num(counts), np.nan_to_num(sums))


def bin_returns(
    steps: np.ndarray, counts: np.ndarray, sums: np.ndarray, points: int = POINTS
) -> tuple[list[int], list[float]]:
    """Returns env steps and, at each, the mean return of the episodes that ended since the point before.

    Points without a new episode are absent.

    Args:
        steps: [N] increasing env steps of the records.
        counts: [N] episodes that had ended by then.
        sums: [N] sum of their returns.
        points: number of equal distances from 0 to the last step.
    """
    places = steps[-1] * np.arange(1, points + 1) / points
    newest = np.searchsorted(steps, places, side="right")  # records up to each place
    counts, sums = np.concatenate([[0.0], counts])[newest], np.concatenate([[0.0], sums])[newest]
    gained = np.diff(counts, prepend=0.0)
    kept = gained > 0
    means = np.diff(sums, prepend=0.0)[kept] / gained[kept]
    return [round(place) for place in places[kept].tolist()], [float(f"{mean:.6g}") for mean in means.tolist()]
