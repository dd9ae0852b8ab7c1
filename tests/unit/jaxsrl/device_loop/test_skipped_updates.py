"""Skipped updates within a dispatch are counted, and too many in a row are seen."""

import jax
import pytest

from jaxsrl.device_loop.loop import DeviceLearner
from jaxsrl.device_loop.program import make_run_keys
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.mesh import LearnerMesh
from tests.support.skipping_agent import make_skipping

# Updates 3 to 7 and 10 are skipped.
AGENT = make_skipping(3, 4, 5, 6, 7, 10)


@pytest.mark.parametrize("dispatches", [(12,), (5, 7), (2, 2, 2, 2, 2, 2), (8, 4)])
@pytest.mark.parametrize(("limit", "is_reached"), [(5, True), (6, False)])
def test_skipped_updates_within_dispatches_are_counted(dispatches, limit, is_reached):
    keys = make_run_keys(0, jax.random.key(1), jax.random.key(2), 2)
    mesh = LearnerMesh(jax.local_devices()[:1])
    learner = DeviceLearner(AGENT, CartPole(), mesh, 1, AGENT.init(None), keys, watch=FiniteWatch(limit))
    ends, returns = [0], []
    for updates in dispatches:
        learner.step(updates)
        if learner.too_many_nonfinite:
            last = learner.num_updates - learner.stats.skipped_span
            returns.append(max(end for end in ends if end <= last))
        ends.append(learner.num_updates)
    assert learner.stats.skipped == 6
    assert float(learner.state.params) == 6.0
    # Checkpoints are at ends of dispatches; the newest from before the first of the skipped updates counts.
    assert returns == ([max(end for end in ends if end <= 3)] if is_reached else [])
