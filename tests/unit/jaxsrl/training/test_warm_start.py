"""Which arrays of another run a new one takes: with a pool, with policies, and of optimizers."""

from types import SimpleNamespace

import numpy as np
import pytest

from agents.api import LearnerState
from agents.transforms.imitation import ImitationExtra
from envpool_bridge.errors import UserError
from jaxsrl.training import warm_start
from jaxsrl.training.run_state import state_to_arrays
from tests.support.run_configs import run_config

POLICIES = ("hunters", "prey")


def leaf(value):
    return {"kernel": np.full(2, value, np.float32)}


def state(params, opt_state, extra=()):
    return LearnerState(params, opt_state, np.zeros((), np.int32), extra)


def several(value, make=leaf):
    return {name: make(value) for name in POLICIES}


def pooled(value, part, extra=()):
    """State of a run with a pool; `part` makes the parameters of its learner."""
    slots = {"slots": part(value), "members": np.full(2, value, np.int32)}
    library = {"params": part(value), "games": np.full(2, value, np.float32)}
    pool = {"agent": extra, "library": library, "games": {"points": np.full(3, value, np.float32)}}
    return state({"learner": part(value), **slots}, part(value), pool)


@pytest.fixture
def start(monkeypatch):
    """Warm start of a state; returns the values that it takes, by path."""

    def start_with(source, fresh, policies=(), has_members=False, frozen=(), **options):
        saved = SimpleNamespace(arrays=state_to_arrays(source), checkpoint="source/checkpoints/2")
        monkeypatch.setattr(warm_start, "read_saved_run", lambda path: saved)
        config, before = run_config(init_from="source", **options), state_to_arrays(fresh)
        arrays, _ = warm_start.warm_start(config, before, policies, has_members, frozen)
        return {
            warm_start.array_path(name): value.ravel()[0]
            for name, value in arrays.items()
            if not np.array_equal(value, before[name])
        }

    return start_with


def test_named_members_stay_where_policies_are_mapped(start):
    taken = start(pooled(2, several), pooled(1, several), POLICIES, has_members=True)
    assert taken == {f"params/learner/{name}/kernel": 2 for name in POLICIES}


def test_policies_may_have_the_names_of_parts_of_a_pool(start):
    def named(value):
        return {name: leaf(value) for name in ("members", "slots", "games")}

    fresh = state(named(1), (), named(1))
    taken = start(state(named(2), (), named(2)), fresh, ("members", "slots", "games"))
    assert len(taken) == 6


@pytest.mark.parametrize("source", ["plain", "pool", "single", "single_pool"])
@pytest.mark.parametrize("has_pool", [False, True], ids=["plain", "pool"])
def test_policies_fit_with_and_without_a_pool(start, source, has_pool):
    sources = {
        "plain": state(several(2), several(2), several(2)),
        "pool": pooled(2, several, several(2)),
        "single": state(leaf(2), leaf(2), leaf(2)),
        "single_pool": pooled(2, leaf, leaf(2)),
    }
    fresh = pooled(1, several, several(1)) if has_pool else state(several(1), several(1), several(1))
    taken = start(sources[source], fresh, POLICIES, has_members=True, init_optimizer=True)
    learner, agent = ("learner/", "agent/") if has_pool else ("", "")
    places = (f"params/{learner}", "opt_state/", f"extra/{agent}")
    assert taken == {f"{place}{name}/kernel": 2 for place in places for name in POLICIES}


@pytest.mark.parametrize("has_pool", [False, True], ids=["plain", "pool"])
def test_frozen_policies_stay(start, has_pool):
    source, fresh = (pooled(value, several) if has_pool else state(several(value), ()) for value in (2, 1))
    taken = start(source, fresh, POLICIES, has_members=True, frozen=["prey"])
    assert taken == {f"params/{'learner/' if has_pool else ''}hunters/kernel": 2}


def test_a_policy_called_learner_is_no_part_of_a_pool(start):
    source = state({"learner": leaf(2), "prey": leaf(3)}, ())
    fresh = state({"learner": leaf(1), "prey": leaf(1)}, ())
    assert start(source, fresh, ("learner", "prey")) == {"params/learner/kernel": 2, "params/prey/kernel": 3}
    with pytest.raises(UserError, match="nothing of .* fits"):
        start(
            state({"learner": {"learner": leaf(2), "prey": leaf(2)}}, ()),
            state({"prey": leaf(1)}, ()),
            ("learner", "prey"),
        )


def test_optimizer_state_without_its_parameters_is_rejected(start):
    source = state({"hunters": leaf(2), "prey": {"other": leaf(2)}}, several(2))
    fresh = state(several(1), several(1))
    with pytest.raises(UserError, match="optimizer's state of policy 'prey' without its parameters: expected both"):
        start(source, fresh, POLICIES, init_optimizer=True)
    assert start(source, fresh, POLICIES) == {"params/hunters/kernel": 2}


def test_critics_are_taken_with_their_optimizer(start):
    def actor_critic(value):
        return state({"actor": leaf(value)}, {"actor": leaf(value), "critic": leaf(value)}, {"critic": leaf(value)})

    taken = start(actor_critic(2), actor_critic(1), init_only=("critic/*",), init_optimizer=True)
    assert taken == {"opt_state/critic/kernel": 2, "extra/critic/kernel": 2}


def test_a_bare_array_is_taken(start):
    assert start(state(np.full(2, 2.0), ()), state(np.full(2, 1.0), ())) == {"params": 2}


def test_all_state_of_optimizers_is_left_out(start):
    def imitator(value):
        agent = {"rate_scale": np.float32(value), "popart": leaf(value)}
        return state(leaf(value), leaf(value), ImitationExtra(agent, leaf(value), leaf(value)))

    taken = start(imitator(2), imitator(1))
    kept = {"params/kernel", "extra/agent/popart/kernel", "extra/discriminator/kernel"}
    assert taken.keys() == kept
    moments = {"opt_state/kernel", "extra/opt_state/kernel", "extra/agent/rate_scale"}
    assert start(imitator(2), imitator(1), init_optimizer=True).keys() == kept | moments
