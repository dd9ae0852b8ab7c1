"""Self-play of one of several learner processes, which prints the members of its slots by version."""

import json

from jaxsrl.experiment import cli
from tests.integration.test_self_play import POOL, UPDATES, experiment
from tests.support.slot_watch import SlotWatch

if __name__ == "__main__":
    watch = SlotWatch(POOL.snapshot_every)
    with watch.receives(structure=None):  # no actors
        cli(experiment("runs"))
    watch.check_changes(UPDATES)
    assert watch.received > UPDATES
    print(json.dumps(watch.members))
