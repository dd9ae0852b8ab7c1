"""The rate limiter: Reverb's rule to the item, no deadlock unless refused, and threads that are held to it."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.api import ReplayConfig
from envpool_bridge.errors import UserError, WaitTimeoutError
from jaxsrl.replay.queue.rate_limiter import (
    Counts,
    RateLimit,
    RateLimiter,
    ReplayClosedError,
    can_insert,
    can_sample,
    check_limit,
    limit_of_replay,
    min_size,
    queue,
    samples_to_inserts,
    stack,
)

SECONDS = 60.0


def walk(limit, num_inserts, insert_size, sample_size, prefer_insert):
    """Counts after so many insertions, doing what `prefer_insert(counts)` wants wherever the rule allows it."""
    inserts, samples, widest = 0, 0, 0.0
    ratio = Fraction(str(limit.samples_per_insert))
    while inserts < num_inserts:
        counts = Counts(inserts, samples)
        insert, sample = can_insert(limit, counts, insert_size), can_sample(limit, counts, sample_size)
        assert insert or sample, f"deadlock at {counts}"
        if insert and (not sample or prefer_insert(counts)):
            inserts += insert_size
        else:
            samples += sample_size
        if inserts > limit.min_size:
            widest = max(widest, abs(float(ratio * (inserts - limit.min_size)) - samples))
    return Counts(inserts, samples), widest


@pytest.mark.parametrize("ratio", [0.25, 1.5])
def test_samples_per_insert_hold_under_random_bursts(ratio):
    held_to_the_ratio(ratio, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.1, 2.0])
def test_samples_per_insert_hold_over_a_million_inserts_with_random_bursts(ratio):
    held_to_the_ratio(ratio, 1_000_000)


def held_to_the_ratio(ratio, num_inserts):
    random_ = random.Random(0)
    burst = {"left": 0, "insert": True}

    def prefer_insert(counts):
        if not burst["left"]:
            burst.update(left=random_.choice([1, 10, 1000]), insert=random_.random() < 0.5)
        burst["left"] -= 1
        return burst["insert"]

    limit = samples_to_inserts(ratio, min_size=100, error_buffer=20.0)
    counts, widest = walk(limit, num_inserts, 1, 1, prefer_insert)
    assert counts.inserts == num_inserts
    assert counts.samples / (counts.inserts - 100) == pytest.approx(ratio, rel=0.01)
    assert 19.0 <= widest <= 20.0  # bursts reach the bounds, and never pass them


def deadlocks(limit, insert_size, sample_size):
    """Whether any schedule of insertions and draws reaches a state where neither may go on; by trying all."""
    seen, states = set(), [(0, 0)]
    while states:
        inserts, samples = states.pop()
        counts = Counts(inserts, samples)
        # Beyond the minimum only the difference matters, so that there are few states.
        at = (min(inserts, limit.min_size), Fraction(str(limit.samples_per_insert)) * inserts - samples)
        if at in seen:
            continue
        seen.add(at)
        following = []
        if can_insert(limit, counts, insert_size):
            following.append((inserts + insert_size, samples))
        if can_sample(limit, counts, sample_size):
            following.append((inserts, samples + sample_size))
        if not following:
            return True
        states += following
    return False


@settings(max_examples=150, deadline=None)
@given(
    ratio=st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 8.0]),
    minimum=st.integers(1, 5),
    buffer=st.integers(0, 24),
    insert_size=st.integers(1, 5),
    sample_size=st.integers(1, 6),
)
def test_exactly_the_rules_that_deadlock_are_refused(ratio, minimum, buffer, insert_size, sample_size):
    limit = samples_to_inserts(ratio, minimum, buffer / 2)
    if deadlocks(limit, insert_size, sample_size):
        with pytest.raises(
            UserError, match=f"insertions of {insert_size} items and draws of {sample_size} at {ratio:g}"
        ):
            check_limit(limit, insert_size, sample_size)
    else:
        check_limit(limit, insert_size, sample_size)


def test_a_refused_buffer_is_wide_enough_at_the_width_that_the_message_asks_for():
    limit = samples_to_inserts(8.0, 1000, 50.0)
    with pytest.raises(UserError, match=r"a max_diff - min_diff of 320 is enough, got 100") as refused:
        check_limit(limit, insert_size=32, sample_size=64)
    assert "8 samples per insert" in str(refused.value)
    check_limit(samples_to_inserts(8.0, 1000, 160.0), insert_size=32, sample_size=64)


@given(
    st.integers(0, 50), st.integers(0, 50), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.1, 0.3, 1.0, 2.5])
)
def test_the_rule_is_that_of_reverb_in_exact_arithmetic(inserts, samples, num, minimum, ratio):
    limit = samples_to_inserts(ratio, minimum, 7.5)
    exact, counts = Fraction(str(ratio)), Counts(inserts, samples)
    least, most = exact * minimum - Fraction(15, 2), exact * minimum + Fraction(15, 2)
    assert can_insert(limit, counts, num) == (inserts < minimum or exact * (inserts + num) - samples <= most)
    assert can_sample(limit, counts, num) == (inserts >= minimum and exact * inserts - samples - num >= least)


def test_a_tenth_is_a_tenth_after_ten_billion_inserts():
    limit = RateLimit(0.1, 1, 0.0, 1.0)
    counts = Counts(inserts=10**10, samples=10**9 - 1)
    assert can_sample(limit, counts)
    assert not can_sample(limit, Counts(10**10, 10**9))
    assert not can_sample(limit, Counts(10**10 - 1, 10**9 - 1))
    assert can_insert(limit, counts, 0)
    assert not can_insert(limit, counts, 1)


def test_below_the_minimum_insertions_never_wait_and_draws_always_do():
    limit = samples_to_inserts(4.0, 10, 4.0)
    assert all(can_insert(limit, Counts(size)) for size in range(10))
    assert not any(can_sample(limit, Counts(size)) for size in range(10))
    assert can_sample(limit, Counts(10))
    assert not can_sample(limit, Counts(inserts=20, deletes=11))  # what is gone does not count


def test_min_size_alone_holds_nobody_back():
    limit = min_size(3)
    assert can_insert(limit, Counts(10**6), 1000)
    assert can_sample(limit, Counts(3), 10**6)
    assert not can_sample(limit, Counts(2), 1)


@pytest.mark.parametrize("limit", [queue(3), stack(3)])
def test_a_queue_waits_when_full_and_when_empty(limit):
    assert can_insert(limit, Counts(2, 0, 0))
    assert not can_insert(limit, Counts(3, 0, 0))
    assert can_insert(limit, Counts(3, 1, 1))
    assert can_sample(limit, Counts(3, 2, 2))
    assert not can_sample(limit, Counts(3, 3, 3))


@pytest.mark.parametrize(("ratio", "batch", "ahead"), [(8.0, 256, 0), (0.3, 7, 0), (0.125, 32, 2)])
def test_the_limit_of_a_replay_configuration_allows_the_gradient_steps_that_are_due(ratio, batch, ahead):
    config = ReplayConfig(capacity=10_000, batch_size=batch, min_size=100, samples_per_insert=ratio)
    limit, insert_size, steps = limit_of_replay(config, 24, ahead), 24, 0
    check_limit(limit, insert_size, batch, config.capacity)
    for inserts in range(24, 2400, 24):
        assert can_insert(limit, Counts(inserts - 24, steps * batch), insert_size)
        due = floor((inserts - 100) * Fraction(str(ratio)) / batch) if inserts >= 100 else 0
        if due > steps and ahead == 0 and inserts > 124:
            assert not can_insert(limit, Counts(inserts, steps * batch), insert_size)
        while can_sample(limit, Counts(inserts, steps * batch), batch):
            steps += 1
        assert steps == due


def test_collecting_may_be_as_far_ahead_as_is_said():
    config = ReplayConfig(capacity=1000, batch_size=8, min_size=16, samples_per_insert=1.0)
    limit = limit_of_replay(config, insert_size=8, inserts_ahead=2)
    counts = Counts(16)
    for _ in range(3):
        assert can_insert(limit, counts, 8)
        counts = Counts(counts.inserts + 8)
    assert not can_insert(limit, counts, 8)  # 24 windows are due, those of 8 since 2 insertions ago
    assert can_insert(limit, Counts(counts.inserts, 8), 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RateLimit(0.0, 1), "samples_per_insert must be positive and finite: got 0.0"),
        (lambda: RateLimit(1.0, 0), "min_size must be at least 1"),
        (lambda: RateLimit(1.0, 1, 3.0, 2.0), "min_diff must not exceed max_diff: got 3.0 and 2.0"),
        (lambda: samples_to_inserts(1.0, 1, -1.0), "error_buffer must not be negative: got -1.0"),
        (lambda: RateLimiter(min_size(10), capacity=9), "must not exceed the capacity.*got 10 and 9"),
        (lambda: RateLimiter(queue(1), insert_size=2), "too narrow"),
        (lambda: check_limit(queue(1), insert_size=0), "at least one item: got 0 and 1"),
    ],
)
def test_what_cannot_work_is_refused_with_numbers(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_threads_that_sleep_at_random_keep_to_the_ratio():
    limit = samples_to_inserts(2.0, min_size=10, error_buffer=6.0)
    limiter, seen = RateLimiter(limit, insert_size=1, sample_size=2), []

    def insert(seed):
        random_ = random.Random(seed)
        for _ in range(100):
            with limiter.inserting(1, SECONDS):
                pass
            if random_.random() < 0.1:
                time.sleep(random_.random() * 0.002)

    def sample(seed):
        random_ = random.Random(seed)
        for _ in range(95):
            with limiter.sampling(2, SECONDS):
                seen.append(limiter.counts)
            if random_.random() < 0.1:
                time.sleep(random_.random() * 0.002)

    run_all([lambda: insert(0), lambda: insert(1), lambda: sample(2), lambda: sample(3)])
    assert limiter.counts == Counts(200, 380)
    assert all(2 * (counts.inserts - 10) - counts.samples - 2 >= -6 for counts in seen)
    assert all(2 * (counts.inserts - 10) - counts.samples <= 6 for counts in seen if counts.inserts > 10)
    assert limiter.waited_seconds["sample"] > 0.0


def run_all(targets):
    with ThreadPoolExecutor(len(targets)) as pool:
        for future in [pool.submit(target) for target in targets]:
            future.result()  # every wait inside has a deadline


def test_a_wait_ends_at_its_deadline_and_says_what_was_there():
    limiter = RateLimiter(queue(2))
    nothing = pytest.raises(
        WaitTimeoutError, match=r"waited 0.01 s to sample 1 items of replay: 0 are inserted, 0 drawn and 0 there"
    )
    with nothing, limiter.sampling(1, 0.01):
        pass
    for _ in range(2):
        with limiter.inserting(1, 0.01):
            pass
    with (
        pytest.raises(WaitTimeoutError, match=r"waited 0.01 s to insert 1 items of replay: 2 are inserted"),
        limiter.inserting(1, 0.01),
    ):
        pass


def test_what_fails_inside_is_not_counted_and_lets_go_of_the_table():
    limiter = RateLimiter(queue(1))
    with pytest.raises(KeyError), limiter.inserting(1, SECONDS):
        raise KeyError("full disk")
    assert limiter.counts == Counts()

    def insert():
        with limiter.inserting(1, SECONDS):
            pass

    run_all([insert])  # in another thread, for the lock is one that its holder may take again
    assert limiter.counts == Counts(1)


def test_closing_wakes_everybody_with_the_first_error():
    limiter, causes = RateLimiter(queue(1)), []

    def wait():
        try:
            with limiter.sampling(1, SECONDS):
                pass
        except ReplayClosedError as closed:
            causes.append(str(closed.__cause__))

    def close():
        limiter.close(ValueError("first"))
        limiter.close(ValueError("second"))

    run_all([wait, wait, close])
    assert causes == ["first", "first"]
    with pytest.raises(ReplayClosedError, match="nobody can insert"), limiter.inserting(1, SECONDS):
        pass


def test_counts_of_a_saved_run_are_gone_on_from():
    limiter = RateLimiter(queue(2))
    limiter.restore(Counts(7, 5, 5))
    with pytest.raises(WaitTimeoutError), limiter.inserting(1, 0.01):
        pass
    with limiter.sampling(1, SECONDS):
        limiter.delete(1)
    assert limiter.counts == Counts(7, 6, 6)
    with limiter.inserting(1, SECONDS):
        pass
