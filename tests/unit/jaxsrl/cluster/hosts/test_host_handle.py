"""The learner's record of a host, from which its successor resumes."""

from types import SimpleNamespace

import numpy as np

from envpool_bridge.options import SupervisorOptions
from jaxsrl.cluster.hosts.host_handle import HostHandle


def test_joining_agents_start_no_episode_of_the_environment():
    shape = SimpleNamespace(num_rows=4, num_slots=2)
    plan = SimpleNamespace(shape=shape)
    config = SimpleNamespace(plan=plan, supervision=SupervisorOptions(), first_sequence=0, journal="")
    handle = HostHandle(config, SimpleNamespace(spec=SimpleNamespace(rows_per_env=2)), 0, "node")
    is_first = np.zeros((3, 4), bool)
    is_first[1, :2] = True  # the first environment starts an episode
    is_first[2, [1, 3]] = True  # an agent joins each
    handle.receive(0, SimpleNamespace(is_first=is_first))
    np.testing.assert_array_equal(handle._episodes, [1, 1, 0, 0])
