"""An update inserts, draws and learns as often as it should; on any number of devices, and across a resume, to the bit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.replay.device.sum_tree import level_offsets
from jaxsrl.replay.on_device import step_keys, with_device_replay
from jaxsrl.replay.state import ReplayExtra, state_shardings
from tests.support.counting_agent import make_counting
from tests.support.replay_model import Stream

CONFIG = ReplayConfig(capacity=120, batch_size=8, min_size=20, gradient_steps_per_env_step=0.125)
PRIORITIZED = dataclasses.replace(CONFIG, priority_exponent=0.6, priority_delay=2)


@functools.cache
def compiled(config, replay, shape):
    """(agent, init, update) of these sizes, compiled once for all tests."""
    agent = with_device_replay(make_counting(Replay(config, **dict(replay))), Stream(shape[1], shape[0]).slot())
    return agent, jax.jit(agent.init), jax.jit(agent.update)


def run(config, slots, *, state=None, first=0, mesh=None, **replay):
    """[(state, metrics)] after each of these trajectories."""
    agent, init, update = compiled(
        config, tuple(sorted({"sequence_length": 2, **replay}.items())), slots[0].reward.shape
    )
    state = init(jax.random.key(0)) if state is None else state
    if mesh is not None:
        shardings = state_shardings(state, mesh.rows, mesh.replicated)
        state = jax.device_put(state, shardings)
        update = jax.jit(agent.update, out_shardings=(shardings, mesh.replicated), donate_argnums=0)
        slots = [jax.device_put(slot, mesh.rows) for slot in slots]
    found = []
    for number, slot in enumerate(slots, start=first):
        state, metrics = update(state, slot, jax.random.fold_in(jax.random.key(1), number))
        found.append(jax.device_get((state, metrics)))
    return found


def slots_of(count, rows=4, steps=3):
    stream = Stream(rows, steps)
    return [stream.slot() for _ in range(count)]


def test_gradient_steps_are_those_that_are_due():
    done = 0
    for number, (state, metrics) in enumerate(run(CONFIG, slots_of(14)), start=1):
        due = max(0, (number * 12 - 20) // 8)
        assert int(state.opt_state) == due
        assert int(state.num_updates) == number
        assert float(metrics["replay/gradient_steps"]) == due - done
        assert float(metrics["replay/size"]) == min(number * 12, 120)
        assert float(metrics["loss"]) == (np.mean(range(done, due)) if due > done else 0.0)
        np.testing.assert_allclose(state.extra.extra["inner"], 1.5**due, rtol=1e-6)
        done = due


@pytest.mark.parametrize("config", [CONFIG, pytest.param(PRIORITIZED, marks=pytest.mark.slow)])
def test_a_run_that_is_resumed_goes_on_to_the_bit(config):
    slots = slots_of(14)
    whole = run(config, slots)
    resumed = run(config, slots[9:], state=whole[8][0], first=9)
    jax.tree.map(np.testing.assert_array_equal, resumed[-1], whole[-1])


@pytest.mark.parametrize("config", [CONFIG, pytest.param(PRIORITIZED, marks=pytest.mark.slow)])
def test_four_devices_do_what_one_does(config):
    slots = slots_of(12)
    one = run(config, slots)
    four = run(config, slots, mesh=LearnerMesh(jax.devices()[:4]))
    jax.tree.map(np.testing.assert_array_equal, four[-1][0].extra.buffer, one[-1][0].extra.buffer)
    np.testing.assert_allclose(four[-1][0].params, one[-1][0].params, rtol=1e-6)
    assert int(four[-1][0].opt_state) == int(one[-1][0].opt_state) > 0


def test_only_stored_steps_are_sharded_over_rows():
    state = jax.eval_shape(compiled(PRIORITIZED, (("sequence_length", 2),), (3, 4))[0].init, jax.random.key(0))
    where = state_shardings(state, "rows", "all")
    assert isinstance(where.extra, ReplayExtra)
    assert set(jax.tree.leaves(where.extra.buffer.storage)) == {"rows"}
    rest = dataclasses.replace(where, extra=(where.extra.extra, dataclasses.replace(where.extra.buffer, storage=())))
    assert set(jax.tree.leaves(rest)) == {"all"}
    assert jax.tree.structure(where) == jax.tree.structure(state)


def test_an_agents_state_without_replay_is_everywhere():
    state = make_counting(Replay(CONFIG, 1)).init(jax.random.key(0))
    assert set(jax.tree.leaves(state_shardings(state, "rows", "all"))) == {"all"}


def test_acting_params_are_synced_with_every_trajectory():
    def refresh(state):
        return dataclasses.replace(state, params=state.params.at[2].set(state.num_updates.astype(jnp.float32)))

    for number, (state, _) in enumerate(run(CONFIG, slots_of(4), sync_acting_params=refresh), start=1):
        assert float(state.params[2]) == number


def test_samples_are_prepared_in_order():
    def doubled(params, extra, sample, key):
        reward = sample.trajectory.reward * 0.0 + params.sum() * 0.0 + 2.0
        return dataclasses.replace(sample, trajectory=dataclasses.replace(sample.trajectory, reward=reward))

    def more(params, extra, sample, key):
        reward = sample.trajectory.reward + 1.0
        return dataclasses.replace(sample, trajectory=dataclasses.replace(sample.trajectory, reward=reward))

    state = run(CONFIG, slots_of(3), transforms=(doubled, more))[-1][0]
    total, steps = 0.0, int(state.opt_state)
    for _ in range(steps):
        total = 0.5 * total + 2 * 8 * 3.0
    assert steps == 2
    assert float(state.params[0]) == total


def test_gradient_steps_without_any_window_are_owed():
    stream = Stream(rows=4, steps=3, end=0.0)
    slots = [dataclasses.replace(stream.slot(), is_first=jnp.zeros((4, 4), bool)) for _ in range(6)]
    slots[3] = dataclasses.replace(slots[3], is_first=jnp.ones((4, 4), bool))
    done = [int(state.opt_state) for state, _ in run(CONFIG, slots, window_start="episode")]
    assert done == [0, 0, 0, (48 - 20) // 8, (60 - 20) // 8, (72 - 20) // 8]


@pytest.mark.slow
def test_first_priorities_are_those_of_whole_windows():
    seen = []

    def initial_priority(steps):
        seen.append((steps.is_first.shape, steps.reward.shape, steps.observation, steps.agent_state))
        return steps.reward[:3] + 0.5 * steps.reward[3 - 1 + 2 :][:3].sum(axis=0) * steps.valid[:3] + steps.is_first[:3]

    config = dataclasses.replace(
        PRIORITIZED, priority_exponent=1.0, gradient_steps_per_env_step=1 / 8000, capacity=1200
    )
    stream = Stream(rows=4, steps=3)
    slots = [stream.slot() for _ in range(110)]
    state = run(config, slots, sequence_length=5, initial_priority=initial_priority)[-1][0]
    assert set(map(str, seen)) == {"((8, 4), (7, 4), (), ())"}
    weights = state.extra.buffer.selection.tree[level_offsets(1200)[-2] :][:1200].reshape(300, 4)
    # The windows beginning at steps 300 to 302 are completed by steps 305 to 307, those of one trajectory: 7 steps in all.
    for begin in range(40, 326):
        number = (begin + 4) // 3  # of the trajectory that completes it
        oldest = 3 * number - 4
        rows = np.arange(4) * 1000.0
        after = sum(rows + oldest + 4 + place for place in range(3))
        valid, first = stream.flags[begin][2], stream.is_first[begin]
        np.testing.assert_allclose(weights[begin % 300], rows + begin + 0.5 * after * valid + first, rtol=1e-6)


@pytest.mark.slow  # compiles for four devices
@pytest.mark.parametrize("delay", [0, 2])
def test_stored_steps_and_sums_are_neither_copied_nor_gathered(delay):
    mesh = LearnerMesh(jax.devices()[:4])
    slot = slots_of(1)[0]
    config = dataclasses.replace(PRIORITIZED, capacity=400_000, priority_delay=delay)
    agent = with_device_replay(make_counting(Replay(config, 2)), slot)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    shardings = state_shardings(state, mesh.rows, mesh.replicated)

    def several(state, slot, key, count):
        def one(number, state):
            return agent.update(state, slot, jax.random.fold_in(key, number))[0]

        return jax.lax.fori_loop(0, count, one, state)

    placed = jax.device_put((slot, jax.random.key(1)), (mesh.rows, mesh.replicated))
    jitted = jax.jit(several, donate_argnums=0, in_shardings=(shardings, None, None, None), out_shardings=shardings)
    memory = jitted.lower(state, *placed, np.int32(3)).compile().memory_analysis()
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.extra.buffer.storage))
    assert memory.alias_size_in_bytes > held / 4
    assert memory.temp_size_in_bytes < held / 100


def test_every_key_is_for_one_use():
    agent = make_counting(Replay(CONFIG, 2, transforms=(lambda params, extra, sample, key: sample,) * 2))
    keys = jax.jit(lambda number: step_keys(agent, jax.random.key(3), number))
    used = {tuple(data) for number in (0, 1) for data in _key_data(keys(number))}
    assert len(used) == 2 * 4


def _key_data(keys):
    return np.concatenate([jax.random.key_data(part).reshape(-1, 2) for part in keys]).tolist()
