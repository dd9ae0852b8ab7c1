"""What the variable says, and that it happens where and when it says so."""

import pytest

from envpool_bridge.errors import UserError
from envpool_bridge.faults import failpoint
from envpool_bridge.faults.failpoint import Failpoint, FailpointError, arm, wanted
from tests.chaos.counting import SHAPE, make_pool


class Place:
    def __init__(self):
        self.done = 0

    def work(self, amount):
        if amount < 0:
            raise ValueError(amount)
        self.done += amount
        return self.done


def test_the_variable_names_places_actions_and_counts(monkeypatch):
    monkeypatch.setenv("JAXSRL_FAILPOINT", "worker.commit.before:kill@17,worker.step.after:hang@1")
    assert wanted() == [Failpoint("worker.commit", True, "kill", 17), Failpoint("worker.step", False, "hang", 1)]
    monkeypatch.delenv("JAXSRL_FAILPOINT")
    assert wanted() == []


@pytest.mark.parametrize(
    "value",
    ["worker.commit:kill@1", "worker.nowhere.before:kill@1", "worker.step.after:explode@1", "worker.step.after:kill@0"],
)
def test_invalid_failpoint_is_rejected_before_workers_start(value, monkeypatch):
    monkeypatch.setenv("JAXSRL_FAILPOINT", value)
    with pytest.raises(UserError, match="expected place.before:action@count"):
        make_pool(SHAPE)


@pytest.mark.parametrize(("before", "done"), [(True, 2), (False, 3)])
def test_failpoint_fires_at_its_count_before_or_after(before, done):
    first, second = Place(), Place()
    point = Failpoint("worker.step", before, "raise", 3)
    arm([point], {"worker.step": [(first, "work"), (second, "work")]})
    assert (first.work(1), second.work(amount=1)) == (1, 1)
    with pytest.raises(FailpointError):
        first.work(1)
    assert first.done + second.done == done
    first.work(1)  # once only


@pytest.mark.parametrize("before", [True, False])
def test_calls_that_raise_arrive_before_but_not_after(before):
    place = Place()
    arm([Failpoint("worker.step", before, "raise", 2)], {"worker.step": [(place, "work")]})
    with pytest.raises(ValueError, match="-1"):
        place.work(-1)
    if not before:
        place.work(1)
    with pytest.raises(FailpointError):
        place.work(1)


def test_every_place_is_documented():
    assert failpoint.__doc__ is not None
    for place in failpoint.PLACES:
        assert f"`{place}`" in failpoint.__doc__
