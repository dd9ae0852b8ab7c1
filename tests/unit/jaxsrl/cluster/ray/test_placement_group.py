"""Reservations of which somebody has all or none, with a clock that only the test moves."""

import types

import pytest

from jaxsrl.cluster.ray import placement_group as tested
from jaxsrl.cluster.ray.placement_group import HOLD_SECONDS, all_or_none


class World:
    """What is asked for is there from a certain second on, each time for as long as somebody says."""

    def __init__(self):
        self.now, self.held, self.asked, self.longest = 0.0, [], 0, 0.0

    def ask(self, name, is_free):
        def made():
            self.asked += 1
            return Asked(self, name, is_free)

        return made


class Asked:
    def __init__(self, world, name, is_free):
        self.world, self.name, self.is_free, self.removed = world, name, is_free, False

    def wait(self, seconds):
        begin, world = self.world.now, self.world
        while not self.is_free(world.now) and world.now < begin + seconds:
            world.now += 0.25
        if world.held:
            world.longest = max(world.longest, world.now - begin)
        if self.is_free(world.now):
            world.held.append(self.name)
            return True
        return False

    def remove(self):
        assert not self.removed
        self.removed = True
        if self.name in self.world.held:
            self.world.held.remove(self.name)


@pytest.fixture
def world(monkeypatch):
    made = World()

    def sleep(seconds):
        assert made.held == []  # who pauses holds nothing
        made.now += seconds

    monkeypatch.setattr(tested, "time", types.SimpleNamespace(monotonic=lambda: made.now, sleep=sleep))
    return made


def test_a_single_reservation_waits_until_the_deadline(world):
    (found,) = all_or_none([world.ask("hosts", lambda now: now >= 50.0)], 60.0)
    assert (found.name, world.asked, world.held) == ("hosts", 1, ["hosts"])
    assert all_or_none([world.ask("more", lambda now: False)], 60.0) == []
    assert world.now == pytest.approx(110.0)
    assert world.held == ["hosts"]


def test_reservation_holds_nothing_while_it_waits(world):
    asks = [world.ask("hosts", lambda now: True), world.ask("servers", lambda now: now >= 20.0)]
    found = all_or_none(asks, 60.0)
    assert [one.name for one in found] == world.held == ["hosts", "servers"]
    assert world.asked > 4
    assert world.longest <= HOLD_SECONDS + 0.25
    assert 20.0 <= world.now < 20.0 + 2 * HOLD_SECONDS


def test_what_is_not_to_be_had_in_time_leaves_nothing_held(world):
    asks = [world.ask("hosts", lambda now: True), world.ask("servers", lambda now: False)]
    assert all_or_none(asks, 12.0) == []
    assert world.held == []
    assert 12.0 <= world.now <= 12.5


def test_who_is_interrupted_holds_nothing(world):
    def interrupted(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        all_or_none([world.ask("hosts", lambda now: True), world.ask("servers", interrupted)], 60.0)
    assert world.held == []
