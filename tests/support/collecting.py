"""Slots as a learner receives them, from a cluster and from this machine, for comparisons."""

import jax
import numpy as np

from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.spec.tree import leaves
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.machine.lifecycle import Lifecycle

ROWS, STEPS, SECONDS = 8, 5, 60.0
RESET = EpisodeReset((0,) * ROWS, (None,) * ROWS)


def arrays_of(slots):
    """Copies the collected arrays, rows joined."""
    names = ("is_first", "action", "reward", "terminated", "truncated", "valid", "policy_version")
    parts = [
        [
            *leaves(slot.observation),
            *(getattr(slot, name) for name in names),
            *(slot.extras[name] for name in sorted(slot.extras)),
            *leaves(slot.agent_state),
        ]
        for slot in slots
    ]
    return [np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)]


def collect(source, params, sequences, first=0):
    """Acquires, publishes and releases as a learner does; returns the content of each sequence."""
    found = []
    for version in range(first, first + sequences):
        assert source.acquire(SECONDS) == version
        found.append(arrays_of(source.slots(version)))
        source.publish(version + 1, params[version + 1])
        source.release(version)
    return found


def collect_locally(config, params, sequences):
    lifecycle = Lifecycle()
    source = PoolCollector(config, jax.local_devices()[:1], lifecycle)
    try:
        source.publish(0, params[0])
        source.start(RESET)
        return collect(source, params, sequences)
    finally:
        lifecycle.join()
        source.close()
