"""Updates that are not finite are left out, counted, and given up on after too many."""

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import LearnerState
from jaxsrl.learner.finite_updates import SKIPPED, SkipCounts, all_finite, keep_if_finite
from jaxsrl.learner.finite_watch import FiniteWatch, write_batch
from jaxsrl.learner.loop import Learner
from jaxsrl.replay.on_device import GRADIENT_STEPS
from jaxsrl.replay.state import ReplayExtra, replace_learned

BEFORE = LearnerState({"w": jnp.ones(3)}, {"m": jnp.zeros(3)}, jnp.int32(4), {"target": jnp.ones(2)})
AFTER = LearnerState({"w": jnp.full(3, 2.0)}, {"m": jnp.ones(3)}, jnp.int32(5), {"target": jnp.zeros(2)})
guard = jax.jit(keep_if_finite)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_an_update_that_is_finite_is_taken_to_the_bit():
    state, metrics = guard(BEFORE, AFTER, {"loss": jnp.float32(1.0)})
    same(state, AFTER)
    assert metrics == {"loss": 1.0, SKIPPED: 0.0}


@pytest.mark.parametrize(
    "spoilt",
    [
        dataclasses.replace(AFTER, params={"w": jnp.array([1.0, jnp.nan, 1.0])}),
        dataclasses.replace(AFTER, opt_state={"m": jnp.array([jnp.inf, 0.0, 0.0])}),
        dataclasses.replace(AFTER, extra={"target": jnp.array([0.0, -jnp.inf])}),
    ],
    ids=["parameters", "optimizer", "extra"],
)
def test_nonfinite_update_is_skipped_and_counted(spoilt):
    state, metrics = guard(BEFORE, spoilt, {"loss": jnp.float32(1.0)})
    same(state, dataclasses.replace(BEFORE, num_updates=jnp.int32(5)))
    assert metrics[SKIPPED] == 1.0


def test_nonfinite_loss_counts_and_other_metrics_do_not():
    assert guard(BEFORE, AFTER, {"loss/value": jnp.float32(jnp.nan)})[1][SKIPPED] == 1.0
    assert guard(BEFORE, AFTER, {"explained_variance": jnp.float32(jnp.nan)})[1][SKIPPED] == 0.0


def test_an_earlier_gradient_that_was_not_finite_counts():
    state, metrics = guard(BEFORE, AFTER, {"loss": jnp.float32(1.0)}, jnp.bool_(False))
    same(state, dataclasses.replace(BEFORE, num_updates=jnp.int32(5)))
    assert metrics[SKIPPED] == 1.0


def test_integers_and_keys_are_finite():
    assert bool(all_finite((jnp.int32(3), jax.random.key(0), jnp.zeros(2))))
    assert bool(all_finite(()))


def test_experience_that_came_in_with_the_update_stays():
    before = dataclasses.replace(BEFORE, extra=ReplayExtra(BEFORE.extra, jnp.zeros(2)))
    spoilt = dataclasses.replace(AFTER, params={"w": jnp.full(3, jnp.nan)}, extra=ReplayExtra(AFTER.extra, jnp.ones(2)))
    state, _ = guard(before, spoilt, {})
    same(state.extra, ReplayExtra(BEFORE.extra, jnp.ones(2)))
    same(state.params, BEFORE.params)


def test_rolling_back_keeps_count_and_experience():
    now = dataclasses.replace(AFTER, extra=ReplayExtra(AFTER.extra, jnp.ones(2)))
    rolled = replace_learned(now, BEFORE)
    same(rolled, LearnerState(BEFORE.params, BEFORE.opt_state, jnp.int32(5), ReplayExtra(BEFORE.extra, jnp.ones(2))))
    same(replace_learned(AFTER, now), AFTER)


def test_actors_receive_what_is_rolled_back_to():
    published: list[tuple[int, Any]] = []
    mesh: Any = SimpleNamespace(
        place_state=lambda state: state,
        copy_params=lambda params: params,
        place_batch=lambda slots: {},
        aliases_host=True,
    )
    source: Any = SimpleNamespace(
        publish=lambda *version: published.append(version),
        acquire=lambda seconds: 0,
        slots=lambda sequence: [SimpleNamespace(policy_version=np.zeros((1, 1)))],
        release=lambda sequence: None,
    )
    learner = Learner(mesh, source, AFTER, lambda state, batch: (state, {SKIPPED: 1.0}), watch=FiniteWatch(2))
    for _ in range(2):
        assert learner.step(lambda slots: None)
    assert learner.too_many_nonfinite
    learner.restore_learned(BEFORE)
    learner.restore_learned(learner.state)  # as a value that is changed by `jaxsrl control` does
    assert published == [(5, AFTER.params), (6, AFTER.params), (7, BEFORE.params)]
    assert (learner.previous_params, learner.published) == (AFTER.params, BEFORE.params)


def skipping(*flags, limit=2, wait=True, dump=None):
    watch = FiniteWatch(limit, dump)
    return watch, [watch.observe({SKIPPED: np.float32(flag)}, {"reward": np.ones(2)}, wait) for flag in flags]


def test_as_many_in_a_row_as_allowed_are_too_many():
    watch, stuck = skipping(1, 0, 1, 1, 1, 0)
    assert stuck == [False, False, False, True, False, False]
    assert watch.skipped == 4


def test_without_a_limit_they_are_only_counted():
    watch, stuck = skipping(1, 1, 1, 1, limit=0)
    assert not any(stuck)
    assert watch.skipped == 4


@pytest.mark.parametrize("wait", [True, False])
def test_updates_without_a_gradient_step_show_nothing(wait):
    """One gradient step every third update: one is skipped, one is not, and the next three are skipped."""
    watch, spans = FiniteWatch(3), {}
    for number, skipped in enumerate([1, -1, -1, 0, -1, -1, 1, -1, -1, 1, -1, -1, 1, -1]):
        metrics = {SKIPPED: np.float32(skipped > 0), GRADIENT_STEPS: np.float32(skipped >= 0)}
        if watch.observe(metrics, (), wait):
            spans[number] = watch.span
    assert spans == {12: 7}
    assert watch.skipped == 4


def test_span_grows_past_the_limit_until_an_update_is_finite():
    watch, spans = FiniteWatch(2), []
    for skipped, steps in [(1, 1), (1, 1), (0, 0), (1, 1), (1, 1), (0, 1), (1, 1), (1, 1)]:
        too_many = watch.observe({SKIPPED: np.float32(skipped), GRADIENT_STEPS: np.float32(steps)}, (), wait=True)
        spans.append((watch.span, too_many))
    assert [span for span, too_many in spans if too_many] == [2, 5, 2]


def test_counts_are_the_same_on_host_and_device():
    """All sequences of four updates: skipped, finite, skipped in part, without a gradient step."""
    on_device = jax.jit(lambda counts, metrics: counts.after(metrics))
    for kinds in itertools.product(((1.0, 1.0), (0.0, 1.0), (0.5, 2.0), (0.0, 0.0)), repeat=4):
        counts, device = SkipCounts(), SkipCounts(*[jnp.int32(0)] * 5)
        for skipped, steps in kinds:
            counts = counts.after({SKIPPED: skipped, GRADIENT_STEPS: steps})
            device = on_device(device, {SKIPPED: jnp.float32(skipped), GRADIENT_STEPS: jnp.float32(steps)})
        assert counts == tuple(map(int, device))  # ints of the host
        rows = "".join("s" if skipped == 1.0 else "f" for skipped, steps in kinds if steps).split("f")
        expected = sum(map(len, rows)), len(rows) - 1, len(rows[0]), len(rows[-1]), max(map(len, rows))
        assert counts == expected


def test_watch_reads_the_first_skip_late_and_later_ones_at_once():
    class Unread:
        def __float__(self):
            pytest.fail("the metrics were read while their update was under way")

    watch = FiniteWatch(3)
    assert not watch.observe({SKIPPED: np.float32(1.0)}, (), wait=False)
    assert watch.skipped == 0
    assert not watch.observe({SKIPPED: np.float32(1.0)}, (), wait=False)
    assert watch.skipped == 2
    assert not watch.observe({SKIPPED: np.float32(0.0)}, (), wait=False)
    assert not watch.observe({SKIPPED: Unread()}, (), wait=False)


def test_a_limit_of_one_is_reached_by_a_single_skipped_update(tmp_path):
    _, stuck = skipping(0, 1, 0, 0, limit=1, wait=False, dump=tmp_path / "batch.npz")
    assert stuck == [False, True, False, False]
    assert (tmp_path / "batch.npz").exists()


def test_no_file_is_written_of_a_batch_that_is_on_devices_alone(tmp_path):
    watch = FiniteWatch(1, tmp_path / "batch.npz")
    assert watch.observe({SKIPPED: np.float32(1.0)}, (), wait=True)
    assert not (tmp_path / "batch.npz").exists()
    assert watch.written is None


def test_of_several_policies_any_one_counts():
    watch = FiniteWatch(1)
    assert watch.observe({f"a/{SKIPPED}": np.float32(0.0), f"b/{SKIPPED}": np.float32(1.0)}, (), wait=True)


def test_an_update_is_skipped_if_all_its_gradient_steps_were():
    watch, steps = FiniteWatch(1), {GRADIENT_STEPS: np.float32(1000.0)}
    assert not watch.observe({SKIPPED: np.float32(0.999), **steps}, (), wait=True)
    assert not watch.observe({f"a/{SKIPPED}": np.float32(0.5), f"b/{SKIPPED}": np.float32(0.5), **steps}, (), wait=True)
    assert (watch.skipped, watch.finite) == (0, 2)
    assert watch.observe({SKIPPED: np.nextafter(np.float32(1.0), np.float32(0.0)), **steps}, (), wait=True)


def test_the_batch_that_was_too_many_is_written(tmp_path):
    watch, stuck = skipping(1, 1, dump=tmp_path / "batch.npz")
    assert stuck[-1]
    assert watch.written == tmp_path / "batch.npz"
    with np.load(tmp_path / "batch.npz") as found:
        assert {name: value.tolist() for name, value in found.items()} == {"['reward']": [1.0, 1.0]}


def test_a_trajectorys_arrays_are_written_by_name(tmp_path):
    write_batch(tmp_path / "b.npz", AFTER)
    with np.load(tmp_path / "b.npz") as found:
        assert "num_updates" in found.files


def test_span_is_open_only_until_an_update_is_finite():
    watch, seen = FiniteWatch(9), []
    for skipped, steps in [(0, 1), (0, 0), (1, 1), (0, 0), (0, 1), (0, 0)]:
        watch.observe({SKIPPED: np.float32(skipped), GRADIENT_STEPS: np.float32(steps)}, (), wait=True)
        seen.append((watch.span, watch.finite))
    assert seen == [(0, 1), (0, 1), (1, 1), (2, 1), (0, 2), (0, 2)]


def test_updates_of_one_dispatch_count_together():
    watch = FiniteWatch(9)
    counts = SkipCounts()
    for skipped in (0.0, 1.0, 0.0, 1.0):
        counts = counts.after({SKIPPED: skipped})
    watch.observe_all(counts, 4)
    assert (watch.skipped, watch.finite, watch.span) == (2, 2, 4)
