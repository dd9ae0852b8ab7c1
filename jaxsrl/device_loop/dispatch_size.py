"""Number of updates per dispatch: enough to hide the host's cost, few enough to react to signals and write records."""

_LEAST_SECONDS = 0.1
_MOST_SECONDS = 0.5


class DispatchSize:
    """Updates per dispatch, doubled until a dispatch takes 0.1 s and halved if one takes more than 0.5 s.

    Attributes:
        updates: updates of the next dispatch, unless something is due earlier.
    """

    def __init__(self) -> None:
        self.updates = 1

    def next_size(self, done: int, total: int, every: int) -> int:
        """Returns the updates of the next dispatch.

        Args:
            done: updates done.
            total: updates of the run, more than `done`.
            every: a dispatch ends at each multiple of it, where a checkpoint is due; 0 for never.
        """
        left = min(self.updates, total - done)
        return min(left, every - done % every) if every else left

    def record(self, updates: int, seconds: float) -> None:
        """Adapts to the duration of a dispatch of `updates`; a shortened one is ignored."""
        if updates < self.updates:
            return
        if seconds < _LEAST_SECONDS:
            self.updates *= 2
        elif seconds > _MOST_SECONDS:
            self.updates = max(1, self.updates // 2)
