"""Time, shared processors and links against hand-computed moments."""

import pytest

from jaxsrl.planner.simulator.events import Clock, Device, Link, Processor
from jaxsrl.planner.simulator.scenario import Network


def moments(start, until: int) -> list[tuple[str, float]]:
    """(name, when) of the first `until` things that `start(clock, tell)` makes happen."""
    clock, found = Clock(), []
    start(clock, lambda name: lambda: found.append((name, round(clock.now, 9))))
    clock.run(lambda: len(found) >= until, 1000)
    return found


def test_a_core_that_two_jobs_share_gives_each_half_its_speed():
    def start(clock, tell):
        core = Processor(clock, 1)
        core.work(1.0, tell("short"))
        core.work(2.0, tell("long"))

    assert moments(start, 2) == [("short", 2.0), ("long", 3.0)]


def test_jobs_that_have_cores_enough_do_not_slow_each_other():
    def start(clock, tell):
        cores = Processor(clock, 2)
        cores.work(1.0, tell("a"))
        cores.work(1.5, tell("b"))

    assert moments(start, 2) == [("a", 1.0), ("b", 1.5)]


def test_a_job_that_comes_later_slows_what_is_left_of_the_first():
    def start(clock, tell):
        core = Processor(clock, 1)
        core.work(2.0, tell("first"))
        clock.after(1.0, lambda: core.work(0.25, tell("second")))

    # 1 s alone, then both at half speed for 0.5 s, then 0.75 s that are left of the first.
    assert moments(start, 2) == [("second", 1.5), ("first", 2.25)]


def test_three_jobs_on_two_cores_run_at_two_thirds():
    def start(clock, tell):
        cores = Processor(clock, 2)
        for name in "abc":
            cores.work(1.0, tell(name))

    assert moments(start, 3) == [("a", 1.5), ("b", 1.5), ("c", 1.5)]


def test_a_device_does_one_job_after_the_other():
    def start(clock, tell):
        device = Device(clock)
        device.work(1.0, tell("a"))
        device.work(1.0, tell("b"))

    assert moments(start, 2) == [("a", 1.0), ("b", 2.0)]


def test_a_link_carries_one_item_at_a_time_and_latency_overlaps():
    def start(clock, tell):
        link = Link(clock, bytes_per_second=100.0, latency_seconds=0.5)
        link.send(100, tell("a"))
        link.send(50, tell("b"))

    assert moments(start, 2) == [("a", 1.5), ("b", 2.0)]


def test_a_ring_all_reduce_sends_each_share_twice_around():
    network = Network("test", 100.0, 0.1)
    assert network.all_reduce_seconds(400.0, 4) == pytest.approx(6 * (0.1 + 1.0))
    assert network.all_reduce_seconds(400.0, 1) == 0.0


def test_a_simulation_in_which_nothing_can_happen_says_so():
    with pytest.raises(RuntimeError, match="stuck"):
        Clock().run(lambda: False, 10)
