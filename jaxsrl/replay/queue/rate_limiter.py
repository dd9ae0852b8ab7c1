"""How many samples may be drawn for what was inserted: the rule as data, and a lock that holds threads to it.

Words and rule are Reverb's (Cassirer et al. 2021, arXiv:2102.04736, section 3.4). With D = samples_per_insert * inserts - samples,
an insertion waits if D would exceed `max_diff`, and a draw if D would fall below `min_diff` or there are fewer than `min_size`
items. Everything is compared in whole numbers: 0.1 means one tenth, and nothing drifts.
"""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property

from agents.api import ReplayConfig
from envpool_bridge.errors import BridgeError, UserError, WaitTimeoutError


class ReplayClosedError(BridgeError):
    """Replay was closed while it was used; carries the error that closed it, if one did, as its cause."""


@dataclasses.dataclass(frozen=True)
class RateLimit:
    """A rule; see the module's docstring. Make one with the functions below.

    Attributes:
        samples_per_insert: draws for each insertion in the long run.
        min_size: items that must be there to draw. While there are fewer, insertions never wait.
        min_diff: least D after a draw.
        max_diff: largest D after an insertion.
    """

    samples_per_insert: float
    min_size: int
    min_diff: float = -math.inf
    max_diff: float = math.inf

    def __post_init__(self) -> None:
        if not 0.0 < self.samples_per_insert < math.inf:
            raise UserError(f"samples_per_insert must be positive and finite: got {self.samples_per_insert}")
        if self.min_size < 1:
            raise UserError(f"min_size must be at least 1, for nothing can be drawn from nothing: got {self.min_size}")
        if not self.min_diff <= self.max_diff:
            raise UserError(f"min_diff must not exceed max_diff: got {self.min_diff} and {self.max_diff}")

    @cached_property
    def ratio(self) -> tuple[int, int]:
        """samples_per_insert as (numerator, denominator), of the decimal number that it is written as."""
        return Fraction(repr(float(self.samples_per_insert))).as_integer_ratio()

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """(min_diff, max_diff) times the denominator, rounded inwards to whole numbers, which D times it always is."""
        denominator = self.ratio[1]
        least = self.min_diff if math.isinf(self.min_diff) else math.ceil(_exact(self.min_diff) * denominator)
        most = self.max_diff if math.isinf(self.max_diff) else math.floor(_exact(self.max_diff) * denominator)
        return least, most


@dataclasses.dataclass(frozen=True)
class Counts:
    """What has happened so far; whole numbers that grow only.

    Attributes:
        inserts: items inserted.
        samples: items drawn, an item drawn twice counted twice.
        deletes: items that are gone: overwritten, or drawn as often as they may be.
    """

    inserts: int = 0
    samples: int = 0
    deletes: int = 0

    @property
    def size(self) -> int:
        """Items that are there."""
        return self.inserts - self.deletes


def samples_to_inserts(samples_per_insert: float, min_size: int, error_buffer: float) -> RateLimit:
    """Reverb's SampleToInsertRatio: D stays within `error_buffer` of samples_per_insert * min_size."""
    if not error_buffer >= 0.0:
        raise UserError(f"error_buffer must not be negative: got {error_buffer}")
    offset = _exact(samples_per_insert) * min_size
    least, most = offset - _exact(error_buffer), offset + _exact(error_buffer)
    return RateLimit(samples_per_insert, min_size, float(least), float(most))


def min_size(size: int) -> RateLimit:
    """Reverb's MinSize: nothing ever waits once `size` items are there."""
    return RateLimit(1.0, size)


def queue(size: int) -> RateLimit:
    """Reverb's Queue: each item is drawn exactly once, and insertions wait while `size` items are there.

    The order is the table's: first in, first out. Each draw deletes what it drew.
    """
    return RateLimit(1.0, 1, 0.0, float(size))


def stack(size: int) -> RateLimit:
    """Reverb's Stack: as `queue`; what came last is drawn first."""
    return queue(size)


def limit_of_replay(config: ReplayConfig, insert_size: int, inserts_ahead: int = 0) -> RateLimit:
    """What `ReplayConfig` says, in env steps and windows, for threads that insert and learn at their own pace.

    No sample is drawn before it is due. An insertion waits until the samples that were due `inserts_ahead` insertions ago are
    drawn; with 0, until all that are due are drawn, which is the order that updates have in one thread.

    Args:
        config: rates and sizes.
        insert_size: env steps of an insertion.
        inserts_ahead: insertions that collecting may be ahead of learning.
    """
    offset = _exact(config.samples_per_insert) * config.min_size
    ratio = _exact(config.samples_per_insert)
    # Less than a batch may be due when an insertion begins: at most a batch less the smallest step that D takes.
    slack = config.batch_size - Fraction(1, ratio.denominator) + ratio * insert_size * (1 + inserts_ahead)
    return RateLimit(config.samples_per_insert, config.min_size, float(offset), float(offset + slack))


def can_insert(limit: RateLimit, counts: Counts, num: int = 1) -> bool:
    """Whether `num` items may be inserted together."""
    if counts.size < limit.min_size:
        return True
    numerator, denominator = limit.ratio
    return (counts.inserts + num) * numerator - counts.samples * denominator <= limit.bounds[1]


def can_sample(limit: RateLimit, counts: Counts, num: int = 1) -> bool:
    """Whether `num` items may be drawn together."""
    if counts.size < limit.min_size:
        return False
    numerator, denominator = limit.ratio
    return counts.inserts * numerator - (counts.samples + num) * denominator >= limit.bounds[0]


def check_limit(limit: RateLimit, insert_size: int = 1, sample_size: int = 1, capacity: int | None = None) -> None:
    """Refuses a rule under which, sooner or later, neither an insertion nor a draw could ever go on.

    With a = samples_per_insert * insert_size and b = sample_size, both wait at any D with max_diff - a < D < min_diff + b. D only
    takes multiples of the greatest common divisor of a and b: the rule is refused exactly if one of them lies there.

    Raises:
        UserError: that, with the numbers; or fewer items are kept than there must be to draw.
    """
    if insert_size < 1 or sample_size < 1:
        raise UserError(f"insertions and draws must have at least one item: got {insert_size} and {sample_size}")
    if capacity is not None and capacity < limit.min_size:
        raise UserError(
            f"min_size must not exceed the capacity, or nothing could ever be drawn: got {limit.min_size} and {capacity}"
        )
    least, most = limit.bounds
    if math.isinf(least) or math.isinf(most):
        return
    numerator, denominator = limit.ratio
    gain, cost = numerator * insert_size, denominator * sample_size
    unit = math.gcd(gain, cost)
    stuck = (most - gain) // unit * unit + unit
    if stuck < least + cost:
        raise UserError(
            f"the error buffer is too narrow: insertions of {insert_size} items and draws of {sample_size} at "
            f"{limit.samples_per_insert:g} samples per insert would all wait when samples_per_insert * inserts - samples "
            f"is {stuck / denominator:g}; a max_diff - min_diff of {(gain + cost) / denominator:g} is enough, got "
            f"{limit.max_diff - limit.min_diff:g}: widen it, or insert and draw fewer at a time"
        )


class RateLimiter:
    """One lock over a table and its counts: whoever is inside may use the table. Thread-safety: any threads.

    Attributes:
        limit: the rule.
    """

    def __init__(
        self,
        limit: RateLimit,
        insert_size: int = 1,
        sample_size: int = 1,
        capacity: int | None = None,
        items: str = "items of replay",
    ) -> None:
        """An empty table.

        Args:
            limit: the rule.
            insert_size: most items of an insertion.
            sample_size: most items of a draw.
            capacity: items that the table keeps; None for any number.
            items: name of the items in messages, with where they come from.

        Raises:
            UserError: see `check_limit`.
        """
        check_limit(limit, insert_size, sample_size, capacity)
        self.limit, self._items = limit, items
        self._counts = Counts()
        lock = threading.RLock()
        self._may_insert, self._may_sample = threading.Condition(lock), threading.Condition(lock)
        self._waited = {"insert": 0.0, "sample": 0.0}
        self._closed, self._error = False, None

    @property
    def counts(self) -> Counts:
        """What has happened so far."""
        with self._may_insert:
            return self._counts

    @property
    def waited_seconds(self) -> dict[str, float]:
        """Seconds that all threads together have waited to "insert" and to "sample"."""
        with self._may_insert:
            return dict(self._waited)

    @contextlib.contextmanager
    def inserting(self, num: int, timeout_seconds: float) -> Iterator[None]:
        """Holds the table to insert `num` items, as soon as the rule allows it. Counted if nothing is raised inside.

        Raises:
            WaitTimeoutError: not allowed within `timeout_seconds`.
            ReplayClosedError: closed, before or meanwhile.
        """
        with self._may_insert:
            self._wait(self._may_insert, "insert", num, timeout_seconds, can_insert)
            yield
            self._counts = dataclasses.replace(self._counts, inserts=self._counts.inserts + num)
            self._wake()

    @contextlib.contextmanager
    def sampling(self, num: int, timeout_seconds: float) -> Iterator[None]:
        """Likewise to draw `num` items."""
        with self._may_sample:
            self._wait(self._may_sample, "sample", num, timeout_seconds, can_sample)
            yield
            self._counts = dataclasses.replace(self._counts, samples=self._counts.samples + num)
            self._wake()

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Holds the table, whatever the rule allows."""
        with self._may_insert:
            yield

    def delete(self, num: int) -> None:
        """Counts `num` items as gone; to be called where the table is held."""
        with self._may_insert:
            self._counts = dataclasses.replace(self._counts, deletes=self._counts.deletes + num)
            self._wake()

    def restore(self, counts: Counts) -> None:
        """Goes on from the counts of a saved run."""
        with self._may_insert:
            self._counts = counts
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """Wakes everybody: they and all who come later get ReplayClosedError. The first error given is its cause."""
        with self._may_insert:
            self._closed, self._error = True, self._error or error
            self._wake()

    def _wake(self) -> None:
        self._may_insert.notify_all()
        self._may_sample.notify_all()

    def _wait(
        self,
        changed: threading.Condition,
        what: str,
        num: int,
        timeout_seconds: float,
        allowed: Callable[[RateLimit, Counts, int], bool],
    ) -> None:
        start = time.monotonic()
        changed.wait_for(lambda: self._closed or allowed(self.limit, self._counts, num), timeout_seconds)
        self._waited[what] += time.monotonic() - start
        if self._closed:
            raise ReplayClosedError(f"replay was closed: nobody can {what} any more") from self._error
        if not allowed(self.limit, self._counts, num):
            counts = self._counts
            raise WaitTimeoutError(
                f"thread {threading.current_thread().name} waited {timeout_seconds:g} s to {what} {num} {self._items}: "
                f"{counts.inserts} are inserted, {counts.samples} drawn and {counts.size} there, and the rule is {self.limit}; see "
                f"whether the other side still runs"
            )


def _exact(number: float) -> Fraction:
    return Fraction(repr(float(number)))
