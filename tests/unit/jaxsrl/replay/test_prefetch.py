"""Updates that draw ahead on a thread are those of the device's one program, whatever the thread's pace."""

import dataclasses
import random
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from envpool_bridge.errors import WaitTimeoutError
from jaxsrl.replay.bounded_queue import ReplayClosedError
from jaxsrl.replay.host.buffer import HostBuffer
from jaxsrl.replay.on_device import step_keys, transform_sample, with_device_replay
from jaxsrl.replay.prefetch import PrefetchingSampler
from tests.support.counting_agent import make_counting
from tests.support.replay_model import Stream

CONFIG = ReplayConfig(capacity=120, batch_size=8, min_size=20, gradient_steps_per_env_step=0.25)
PRIORITIZED = dataclasses.replace(CONFIG, priority_exponent=0.6)
DELAYED = dataclasses.replace(PRIORITIZED, priority_delay=2)
RUN_KEY = jax.random.key(1)
SECONDS = 60.0


def slots_of(count):
    stream = Stream(rows=4, steps=3, frames=2)
    return [jax.device_get(stream.slot()) for _ in range(count)]


def agent_of(config, **replay):
    return make_counting(Replay(config, **{"sequence_length": 2, **replay}))


def scaled(params, extra, sample, key):
    # Powers of two: what is exact does not depend on how the compiler fuses.
    scale = jax.random.choice(key, jnp.array([1.0, 2.0, 4.0]))
    return dataclasses.replace(
        sample, trajectory=dataclasses.replace(sample.trajectory, reward=sample.trajectory.reward * scale)
    )


def first_priority(steps):
    """[T, B] from [T + L - 1, B], with L = 2."""
    return steps.reward[:-1] % 11


def on_device(agent, slots, state=None, first=0):
    trained = with_device_replay(agent, slots[0])
    update = jax.jit(trained.update)
    state = jax.jit(trained.init)(jax.random.key(0)) if state is None else state
    states = []
    for number, slot in enumerate(slots, start=first):
        state, _ = update(state, slot, jax.random.fold_in(RUN_KEY, number))
        states.append(jax.device_get(state))
    return states


def on_host(agent, slots, state=None, saved=None, first=0, slow=None):
    """The states after each trajectory, and the buffer after the last."""
    buffer = HostBuffer(agent.data, slots[0])
    sampler = PrefetchingSampler(buffer, SECONDS)
    state = jax.jit(agent.init)(jax.random.key(0)) if state is None else state
    keys, states = jax.jit(partial(step_keys, agent)), []

    @jax.jit
    def learn(state, sample, keys):
        return agent.update(state, transform_sample(agent, state, sample, keys.transforms), keys.update)

    if saved is not None:
        sampler.restore(buffer.from_arrays(saved))
    if slow is not None:
        slow_down(buffer, slow)
    for number, slot in enumerate(slots, start=first):
        buffer.insert(slot)
        key = jax.random.fold_in(RUN_KEY, number)
        due = [keys(key, np.int32(step)) for step in range(buffer.steps_due())]
        state = dataclasses.replace(state, num_updates=state.num_updates + 1)
        sampler.request([each.draw for each in due])
        for each in due:
            state, _, priority = learn(state, sampler.get(), each)
            sampler.update_priorities(priority)
        sampler.end_update()
        states.append(jax.device_get(state))
    saved = jax.tree.map(np.array, buffer.to_arrays(sampler.pending_updates()))
    sampler.close()
    return states, saved


def slow_down(buffer, seed):
    sample, random_ = buffer.sample, random.Random(seed)

    def slowly(key):
        time.sleep(random_.random() * 0.004)
        return sample(key)

    buffer.sample = slowly


def assert_same_run(host, device):
    for state, expected in zip(host, device, strict=True):
        inner = dataclasses.replace(expected, extra=expected.extra.extra)
        jax.tree.map(np.testing.assert_array_equal, state, inner)


CASES = {
    "uniform": (CONFIG, {}),
    "prioritized": (PRIORITIZED, {}),
    "delayed": (DELAYED, {"initial_priority": first_priority, "transforms": (scaled, scaled)}),
}
SLOW = [pytest.param(case, marks=pytest.mark.slow) for case in ("prioritized", "delayed")]


@pytest.mark.parametrize("case", ["uniform", *SLOW])
def test_updates_on_host_and_device_are_the_same_to_the_bit(case):
    config, replay = CASES[case]
    agent, slots = agent_of(config, **replay), slots_of(14)
    host, buffer = on_host(agent, slots, slow=0)
    device = on_device(agent, slots)
    assert_same_run(host, device)
    assert int(host[-1].opt_state) == (14 * 12 - 20) * 2 // 8
    saved = dataclasses.replace(device[-1].extra.buffer, pending=())
    jax.tree.map(np.testing.assert_array_equal, dataclasses.replace(buffer, pending=()), saved)


@pytest.mark.slow
@pytest.mark.parametrize("updates", [2, 3, 9])  # no priority, one and two are on their way
def test_a_run_goes_on_from_a_saved_buffer_wherever_it_was_kept(updates):
    agent, slots = agent_of(dataclasses.replace(DELAYED, gradient_steps_per_env_step=0.0625)), slots_of(13)
    whole = on_device(agent, slots)
    device = whole[updates - 1]
    (*_, state), buffer = on_host(agent, slots[:updates])
    inner = dataclasses.replace(device, extra=device.extra.extra)
    from_host, _ = on_host(agent, slots[updates:], state, buffer, updates)
    from_device, _ = on_host(agent, slots[updates:], inner, device.extra.buffer, updates)
    assert_same_run(from_host, whole[updates:])
    assert_same_run(from_device, whole[updates:])
    joined = dataclasses.replace(device, extra=dataclasses.replace(device.extra, buffer=buffer))
    again = on_device(agent, slots[updates:], joined, updates)
    jax.tree.map(np.testing.assert_array_equal, again[-1].params, whole[-1].params)


def sampler_of(config):
    slots = slots_of(8)
    buffer = HostBuffer(Replay(config, sequence_length=2), slots[0])
    for slot in slots:
        buffer.insert(slot)
    return buffer, PrefetchingSampler(buffer, SECONDS)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_prefetched_samples_equal_the_priority_delay(delay):
    config = dataclasses.replace(PRIORITIZED, priority_delay=delay)
    buffer, sampler = sampler_of(config)
    drawn, sample = [], buffer.sample
    buffer.sample = lambda key: drawn.append(key) or sample(key)
    sampler.request(list(np.arange(16, dtype=np.uint32).reshape(8, 2)))
    for _ in range(delay + 1):
        sampler.get()
    with pytest.raises(WaitTimeoutError):
        sampler._samples.get(0.2)
    assert len(drawn) == delay + 1
    sampler.close()


def test_the_first_error_of_the_thread_reaches_the_learner():
    buffer, sampler = sampler_of(CONFIG)

    def fail(key):
        raise OSError("no such memory")

    buffer.sample = fail
    sampler.request([np.zeros(2, np.uint32)])
    with pytest.raises(ReplayClosedError) as ended:
        sampler.get()
    assert str(ended.value.__cause__) == "no such memory"
    with pytest.raises(ReplayClosedError):
        sampler.end_update()
    sampler.close()


def test_closing_leaves_no_thread_even_in_the_middle_of_a_turn():
    _, sampler = sampler_of(PRIORITIZED)
    sampler.request(list(np.arange(6, dtype=np.uint32).reshape(3, 2)))
    sampler.get()
    sampler.close()
    assert not any(thread.name == "replay-sampler" for thread in threading.enumerate())
    with pytest.raises(ReplayClosedError):
        sampler.get()
