"""Learners of members: their skipped updates, and the end of a group whose dispatch failed."""

import jax
import pytest

from jaxsrl.device_loop.program import make_run_keys
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.many_seeds.learner import SeedGroup
from jaxsrl.many_seeds.program import MemberStart
from tests.support.skipping_agent import make_skipping


def start_group(agent, limit=0):
    """Returns a group of one member, which has started."""
    group = SeedGroup(1, lambda values: agent, CartPole(), rollout_length=1)
    start = MemberStart(agent.init(None), make_run_keys(0, jax.random.key(1), jax.random.key(2), 2), None, {})
    group.enter(0)
    group.start(0, start, FiniteWatch(limit))
    return group


def test_skipped_updates_within_a_dispatch_are_counted():
    group = start_group(make_skipping(1, 2, 3), limit=3)
    group.advance(0, 8)
    learner = group.learners[0]
    assert learner.too_many_nonfinite
    assert (learner.stats.skipped, learner.stats.skipped_span) == (3, 8)


def test_error_of_a_failed_dispatch_is_not_hidden(monkeypatch):
    group = start_group(make_skipping())

    def fail(counts):
        for leaf in jax.tree.leaves((group._program._state, group._program._rows)):
            leaf.delete()  # donated
        raise RuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr(group._program, "advance", fail)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        group.advance(0, 1)
    group.leave(0)
    assert not group._turns._present


def test_a_member_leaves_even_if_its_state_is_lost():
    group = start_group(make_skipping())
    for leaf in jax.tree.leaves(group._program._state):
        leaf.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        group.leave(0)
    assert not group._turns._present
