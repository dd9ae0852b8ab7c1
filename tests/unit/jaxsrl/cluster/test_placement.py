import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster import placement
from jaxsrl.cluster.placement import nodes_in_time
from jaxsrl.machine.resources import Node


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(placement.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(placement.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def needs(hosts):
    def place(nodes):
        if len(nodes) < hosts:
            raise UserError(f"{len(nodes)} nodes are too few")

    return place


def test_nodes_that_are_still_to_join_are_waited_for(clock):
    seen = nodes_in_time(lambda: tuple(Node(str(number), 4) for number in range(int(clock[0]))), needs(3), 3, 60.0)
    assert len(seen) == 3
    assert clock[0] == 3.0


def test_in_the_end_the_nodes_that_came_are_refused(clock):
    with pytest.raises(UserError, match="1 nodes are too few"):
        nodes_in_time(lambda: (Node("a", 4),), needs(2), 2, 10.0)
    assert 10.0 <= clock[0] <= 11.0


def test_what_no_cluster_could_run_is_refused_at_once(clock):
    with pytest.raises(UserError, match="too few"):
        nodes_in_time(lambda: (), needs(4), 3, 60.0)
    assert clock[0] == 0.0
