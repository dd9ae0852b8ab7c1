"""The task of each environment: shares are kept in every prefix, and do not depend on the number of environments."""

import pytest

from envpool_bridge.spec.tasks import Task, assign_tasks


def tasks_of(*shares):
    return [Task(f"task {place}", share) for place, share in enumerate(shares)]


def test_assign_tasks_is_a_round_robin_for_equal_shares():
    assert assign_tasks(tasks_of(0.1, 0.1, 0.1), 7) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("shares", [(1.0, 3.0), (0.5, 0.3, 0.2), (7.0, 1.0, 1.0, 1.0)])
def test_assign_tasks_keeps_shares_in_every_prefix(shares):
    tasks, total = tasks_of(*shares), sum(shares)
    assigned = assign_tasks(tasks, 200)
    for count in range(1, 201):
        for place, share in enumerate(shares):
            assert abs(assigned[:count].count(place) - share / total * count) <= len(shares) - 1
    assert assign_tasks(tasks, 61) == assigned[:61]
