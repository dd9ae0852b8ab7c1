"""A buffer on the host holds, draws and saves what one on a device does, to the bit."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

import jaxsrl.replay.host.storage
from agents.api import Replay, ReplayConfig
from envpool_bridge.errors import BadEnvOutputError, UserError
from jaxsrl.replay.device.storage import init_storage, insert
from jaxsrl.replay.device.windows import gather_windows
from jaxsrl.replay.host.buffer import HostBuffer
from jaxsrl.replay.host.storage import allocate_arrays
from tests.support.replay_model import Stream

CASES = {
    "frames": (Stream(rows=2, steps=3, frames=4, seed=2), 40, 0.6, {"sequence_length": 4}),
    "memory": (Stream(rows=2, steps=2, seed=4, remembers=True), 48, 0.0, {"sequence_length": 7, "stride": 4}),
    "teams": (Stream(rows=6, steps=3, seed=6), 100, 0.0, {"sequence_length": 2, "agents_per_window": 3}),
    "episodes": (
        Stream(rows=3, steps=3, frames=2, seed=7, remembers=True),
        60,
        0.0,
        {"sequence_length": 4, "window_start": "episode"},
    ),
}


def replay_of(capacity, exponent=0.0, windows=16, **replay):
    config = ReplayConfig(capacity=capacity, batch_size=windows, min_size=30, priority_exponent=exponent)
    return Replay(config, **replay)


def words_of(number):
    return np.array([number, 1], np.uint32)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("case", CASES)
def test_steps_and_windows_are_those_of_a_buffer_on_the_device(case):
    template, capacity, exponent, replay = CASES[case]
    stream = dataclasses.replace(template)
    slots = [jax.device_get(stream.slot()) for _ in range(30)]  # more than two turns of the ring
    host = HostBuffer(replay_of(capacity, exponent, **replay), slots[0])
    storage = init_storage(host.sizes, slots[0])
    add, gather = jax.jit(partial(insert, host.sizes)), jax.jit(partial(gather_windows, host.sizes))
    late, compared = None, 0
    for number, slot in enumerate(slots):
        storage = add(storage, host.to_arrays().selection.position, slot)
        host.insert(slot)
        assert_same(storage, host.to_arrays().storage)
        if host.num_windows == 0:
            continue
        sample = host.sample(words_of(number))[0]
        drawn = host._sampler.make_windows(*host._sampler.draw(words_of(number)))
        position = host.to_arrays().selection.position
        assert_same(sample.trajectory, gather(storage, position, drawn.begin, drawn.group))
        assert_same(sample.probability, drawn.probability)
        assert sample.num_windows == host.num_windows == drawn.num_windows
        compared += 1
        if exponent:
            host.update_priorities(drawn, 1.0 + sample.trajectory.reward[0] % 5)
            late = late or drawn
    assert compared > 20
    if exponent:
        assert host.num_stale == 0
        host.update_priorities(late, np.ones(16))
        assert host.num_stale == 16


def test_windows_are_the_steps_that_were_inserted():
    stream = Stream(rows=3, steps=4, frames=3, seed=1)
    slots = [jax.device_get(stream.slot()) for _ in range(11)]
    host = HostBuffer(replay_of(60, sequence_length=2), slots[0])
    for slot in slots:
        host.insert(slot)
    windows = host.sample(words_of(0))[0].trajectory
    for index in range(16):
        numbers = windows.action[:, index]
        row, begin = divmod(int(numbers[0]), 1000)
        assert 44 - 20 + 2 <= begin <= 44 - 2  # the ring has 20 steps, two of which are only history
        window = jax.tree.map(lambda leaf, index=index: leaf[:, index], windows)
        stream.check(window, row, begin, 2)
        np.testing.assert_array_equal(window.observation["plain"], row * 1000 + np.arange(begin, begin + 3))
        seen = [stream.is_first[t][row] for t in range(begin - 2, begin + 3)]
        np.testing.assert_array_equal(window.is_first[2:], seen[2:])
        # Frames of an earlier episode are masked by `is_first` when they are stacked.
        np.testing.assert_array_equal(window.observation["image"], row * 1000 + np.arange(begin - 2, begin + 3))


@pytest.mark.parametrize("num_before", [2, 4, 7])  # in the middle of the ring, at its end, in its second turn
def test_steps_before_another_episode_are_not_valid(num_before):
    stream = Stream(rows=4, steps=3, frames=2, seed=1, end=0.0)
    slots = [jax.device_get(stream.slot()) for _ in range(num_before + 2)]
    host = HostBuffer(replay_of(48, sequence_length=2), slots[0])
    storage, add = init_storage(host.sizes, slots[0]), jax.jit(partial(insert, host.sizes))
    # Row 1 begins an episode, as after a resume that cannot continue. Row 3 is where it was not, but its episode goes on.
    slots[num_before].is_first[1, 1] = True
    slots[num_before].observation["plain"][0, 3] += 1.0
    for slot in slots[: num_before + 1]:
        storage = add(storage, host.to_arrays().selection.position, slot)
        host.insert(slot)
    newest = (3 * num_before - 1) % host.sizes.ring_steps
    stored = host.sizes.ring_steps if num_before > 4 else 3 * (num_before + 1)
    for valid, cut in ((np.asarray(storage.valid), [1]), (host.to_arrays().storage.valid, [1, 3])):
        np.testing.assert_array_equal(valid[newest], [row not in cut for row in range(4)])
        assert valid.sum() == 4 * min(stored, host.sizes.ring_steps) - len(cut)


def test_what_was_inserted_and_what_was_drawn_are_copies():
    stream = Stream(rows=2, steps=4, seed=3, remembers=True)
    host = HostBuffer(replay_of(64, sequence_length=4, stride=4), jax.device_get(stream.slot()))
    for _ in range(16):
        slot = jax.tree.map(np.array, jax.device_get(stream.slot()))
        host.insert(slot)
        jax.tree.map(lambda leaf: leaf.fill(1), slot)
    kept = jax.tree.map(np.array, host.to_arrays().storage)
    assert kept.reward.max() > 1000
    sample, _ = host.sample(words_of(0))
    jax.tree.map(lambda leaf: leaf.fill(0), sample.trajectory)
    assert_same(kept, host.to_arrays().storage)


def test_a_buffer_takes_the_memory_of_its_steps_and_hardly_more():
    shapes = jax.eval_shape(lambda: Stream(rows=8, steps=16, frames=4).slot())
    shapes.observation["image"] = jax.ShapeDtypeStruct((20, 8, 84, 84), np.uint8)
    host = HostBuffer(replay_of(8 * 16 * 20, sequence_length=2), shapes)
    step_bytes = (
        84 * 84 + 4 + 1 + 4 + 4 + 3 + 4 + 4
    )  # image, plain, is_first, action, reward, three marks, version, value
    theoretical = 8 * 16 * 20 * step_bytes
    assert theoretical <= host.num_bytes <= 1.05 * theoretical


def test_a_buffer_goes_on_from_what_was_saved_to_the_bit():
    stream = Stream(rows=2, steps=3, frames=2, seed=9)
    slots = [jax.device_get(stream.slot()) for _ in range(20)]
    replay = replay_of(60, 0.5, sequence_length=3)
    one = HostBuffer(replay, slots[0])
    for slot in slots[:13]:
        one.insert(slot)
        one.steps_due()
    sample, drawn = one.sample(words_of(3))
    one.update_priorities(drawn, np.arange(16.0))
    other = HostBuffer(replay, slots[0])
    other.from_arrays(jax.tree.map(np.array, one.to_arrays()))
    for number, slot in enumerate(slots[13:]):
        found = []
        for buffer in (one, other):
            buffer.insert(slot)
            due = buffer.steps_due()
            sample, drawn = buffer.sample(words_of(number))
            buffer.update_priorities(drawn, sample.trajectory.reward[0])
            found.append((due, sample, drawn))
        assert_same(*found)
    assert_same(one.to_arrays(), other.to_arrays())


def test_initial_priorities_are_computed_on_the_cpu():
    seen = []

    def first_priority(steps):
        return steps.reward[:3]

    slot = jax.device_get(Stream(rows=2, steps=3).slot())
    with jax.default_device(jax.devices()[1]):
        host = HostBuffer(replay_of(60, 0.5, sequence_length=2, initial_priority=first_priority), slot)
        program = host._initial_priority
        host._initial_priority = lambda steps: seen.append(program(steps).devices()) or program(steps)
        host.insert(slot)
    assert seen == [{jax.devices("cpu")[0]}]


def test_a_saved_buffer_of_another_size_is_refused():
    slot = jax.device_get(Stream(rows=2, steps=3).slot())
    saved = HostBuffer(replay_of(60, sequence_length=2), slot).to_arrays()
    with pytest.raises(UserError, match="expected a saved replay buffer of the sizes"):
        HostBuffer(replay_of(120, sequence_length=2), slot).from_arrays(saved)


def test_a_trajectory_of_another_form_is_refused():
    host = HostBuffer(replay_of(60, sequence_length=2), jax.device_get(Stream(rows=2, steps=3).slot()))
    with pytest.raises(BadEnvOutputError, match="with the shapes of the replay buffer"):
        host.insert(jax.device_get(Stream(rows=2, steps=4).slot()))


def test_sample_without_a_window_raises_error_with_numbers():
    stream = Stream(rows=2, steps=3)
    host = HostBuffer(replay_of(60, sequence_length=5), jax.device_get(stream.slot()))
    host.insert(jax.device_get(stream.slot()))
    with pytest.raises(UserError, match=r"1 window of 5 steps .* has 6 env steps of 2 rows and no such window"):
        host.sample(words_of(0))
    host.insert(jax.device_get(stream.slot()))
    assert host.sample(words_of(0))[0].num_windows == 4


def test_too_little_memory_is_refused_with_numbers(monkeypatch):
    monkeypatch.setattr(jaxsrl.replay.host.storage, "free_host_bytes", lambda: 3 * 2**20)
    with pytest.raises(
        UserError, match=r"needs 4\.0 MiB .* 3\.0 MiB are available: set replay.capacity to less than 0.75"
    ):
        allocate_arrays([jax.ShapeDtypeStruct((4, 2**20), np.uint8)])
    few, more = allocate_arrays([jax.ShapeDtypeStruct((3,), np.uint8), jax.ShapeDtypeStruct((2, 5), np.float32)])
    few.fill(7)
    assert (more.shape, more.dtype, more.sum(), more.ctypes.data % 64) == ((2, 5), np.float32, 0.0, 0)


def test_initial_priorities_are_found_where_jax_has_no_cpu(monkeypatch):
    replay = Replay(
        ReplayConfig(capacity=100, batch_size=8, min_size=8, priority_exponent=0.6),
        sequence_length=2,
        initial_priority=lambda steps: steps.reward[:-1] % 11,
    )
    stream = Stream(rows=4, steps=3, seed=3)
    slots = [jax.device_get(stream.slot()) for _ in range(8)]

    def states():
        buffer = HostBuffer(replay, slots[0])
        for slot in slots:
            buffer.insert(slot)
        return jax.tree.map(np.array, buffer.to_arrays())

    expected, local_devices = states(), jax.local_devices

    def of_the_accelerator_alone(*arguments, backend=None, **options):
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")  # as jax does under JAX_PLATFORMS=cuda
        return local_devices(*arguments, backend=backend, **options)

    monkeypatch.setattr(jax, "local_devices", of_the_accelerator_alone)
    assert_same(states(), expected)


@pytest.mark.parametrize("case", ["frames", "teams", "episodes"])
def test_draws_together_are_those_of_one_key_each(case):
    template, _, _, replay = CASES[case]
    steps = jax.device_get(dataclasses.replace(template, steps=80, frames=1).slot())
    one, three = (HostBuffer(replay_of(60, **replay), steps, steps, num_joined=count) for count in (1, 3))
    keys = [words_of(number) for number in (5, 6, 7)]
    samples = [one.sample(key.copy())[0] for key in keys]
    together, drawn = three.sample(np.stack(keys))
    assert drawn is None
    for name in (field.name for field in dataclasses.fields(together.trajectory)):
        joined = partial(np.concatenate, axis=0 if name == "agent_state" else 1)
        parts = [getattr(sample.trajectory, name) for sample in samples]
        assert_same(getattr(together.trajectory, name), jax.tree.map(lambda *leaves, join=joined: join(leaves), *parts))
    assert_same(together.probability, np.concatenate([sample.probability for sample in samples]))
    assert together.num_windows == samples[0].num_windows
