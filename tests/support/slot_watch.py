"""Comparison of every opponent slot with the library member that it names, where a learner or an acting device has it."""

import contextlib

import jax
import numpy as np
import pytest

from jaxsrl.collect.params.shared_memory import SharedParams
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.training.callbacks import Callback


def trees_equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


class SlotWatch(Callback):
    """Sees the parameters of every version, in order, and fails where a slot is not the member that it names, to the bit.

    Member n entered the library with version n * `snapshot_every`, so it is the learner of that version.

    Attributes:
        learners: parameters of the learner by version.
        members: members of the slots by version.
        received: parameters that acting threads, devices and processes received.
    """

    def __init__(self, snapshot_every):
        self.snapshot_every = snapshot_every
        self.learners, self.members, self.received = {}, {}, 0

    def on_start(self, run):
        self.see(run.num_updates, run.state.params)

    def on_update(self, run):
        self.see(run.num_updates, run.state.params)

    def see(self, version, params):
        params = jax.tree.map(np.array, jax.device_get(params))
        members = params["members"].tolist()
        assert version in (len(self.learners), len(self.learners) - 1), "every version is seen"
        assert trees_equal(self.learners.setdefault(version, params["learner"]), params["learner"])
        assert self.members.setdefault(version, members) == members
        for slot, member in enumerate(members):
            held = jax.tree.map(lambda leaf, slot=slot: leaf[slot], params["slots"])
            assert trees_equal(held, self.learners[member * self.snapshot_every])

    @contextlib.contextmanager
    def receives(self, structure):
        """Sees also what acts: the parameters of each device, and those in the memory that actors read.

        Args:
            structure: of the parameters.
        """
        to_store, to_actors = ParamsStore.publish, SharedParams.publish

        def publish(store, version, params):
            self.received += 1
            self.see(version, params)
            to_store(store, version, params)

        def share(memory, version, leaves):
            to_actors(memory, version, leaves)
            self.received += 1
            self.see(version, jax.tree.unflatten(structure, memory.read(version)))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ParamsStore, "publish", publish)
            patched.setattr(SharedParams, "publish", share)
            yield

    def check_changes(self, updates):
        """Fails unless every version was seen, slots changed, and the learner did."""
        assert [*self.members] == list(range(updates + 1))
        changes = sum(self.members[version] != self.members[version + 1] for version in range(updates))
        assert changes >= 2
        assert not trees_equal(self.learners[0], self.learners[updates])
