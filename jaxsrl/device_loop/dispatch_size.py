"""How many updates one dispatch has: enough that the host costs nothing, few enough that signals and records are seen to."""

_LEAST_SECONDS = 0.1
_MOST_SECONDS = 0.5


class DispatchSize:
    """The number of updates a dispatch, doubled until one takes 0.1 s and halved where one takes more than 0.5 s.

    Attributes:
        updates: in the next dispatch, if nothing is due before.
    """

    def __init__(self) -> None:
        """One update at first."""
        self.updates = 1

    def next_size(self, done: int, total: int, every: int) -> int:
        """Updates of the next dispatch.

        Args:
            done: updates done.
            total: updates of the run, more than `done`.
            every: a dispatch ends at each multiple of it, where a checkpoint is due; 0 for never.
        """
        left = min(self.updates, total - done)
        return min(left, every - done % every) if every else left

    def record(self, updates: int, seconds: float) -> None:
        """Takes in how long a dispatch of `updates` took; a shortened one says nothing."""
        if updates < self.updates:
            return
        if seconds < _LEAST_SECONDS:
            self.updates *= 2
        elif seconds > _MOST_SECONDS:
            self.updates = max(1, self.updates // 2)
