"""Draws of experience on the host follow from the host's own count, made on the host, and are those of replay on a device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from jaxsrl.learner.finite_updates import SKIPPED, with_finite_updates
from jaxsrl.learner.host_replay import HostReplay, HostReplayMesh
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.sample_preparer import SamplePreparer
from jaxsrl.replay.client import LocalReplayClient
from jaxsrl.replay.on_device import step_keys, with_device_replay
from tests.support.counting_agent import make_counting
from tests.support.replay_model import Stream

CONFIG = ReplayConfig(capacity=120, batch_size=8, min_size=20, gradient_steps_per_env_step=0.25)
RUN_KEY = jax.random.key(4)
FIRST, UPDATES = 5, 12


class Noted(LocalReplayClient):
    """Experience that notes the keys it draws with."""

    def insert(self, batch, keys):
        self.drawn = getattr(self, "drawn", [])
        due = super().insert(batch, keys)
        self.drawn.append([keys[number].draw for number in range(due)])
        return due


def slots():
    stream = Stream(rows=4, steps=3, frames=2)
    return [jax.device_get(stream.slot()) for _ in range(UPDATES)]


def agent_of():
    return make_counting(Replay(CONFIG, sequence_length=2))


def first_state(agent):
    return dataclasses.replace(jax.jit(agent.init)(jax.random.key(0)), num_updates=np.int32(FIRST))


def learn(change=lambda state: state, device=None):
    """(keys of the draws of each update, the states after each); `change` is done to every state but the first."""
    agent, batches = agent_of(), slots()
    device = device or jax.local_devices()[0]
    mesh, run_key = HostReplayMesh([device]), jax.device_put(RUN_KEY, device)
    experience = Noted(agent.data, batches[0])
    replay = HostReplay(agent, mesh, run_key, experience)
    try:
        state, states = mesh.place_state(first_state(agent)), []
        for batch in batches:
            state, metrics = replay(state, batch)
            states.append(jax.device_get((state, metrics)))
            state = change(state)
    finally:
        replay.close()
    return experience.drawn, states


def test_draw_keys_use_the_update_count_of_the_host() -> None:
    later = lambda state: dataclasses.replace(state, num_updates=state.num_updates + 1000)  # noqa: E731
    drawn, _ = learn(later)
    for update, keys in enumerate(drawn, start=FIRST):
        for number, words in enumerate(keys):
            key = jax.random.fold_in(RUN_KEY, update)
            np.testing.assert_array_equal(words, step_keys(agent_of(), key, np.int32(number)).draw)
    assert sum(map(len, drawn)) > UPDATES


def test_draw_keys_are_computed_on_the_cpu() -> None:
    accelerator = jax.local_devices()[2]
    with jax.default_device(accelerator):
        drawn, states = learn(device=accelerator)
    devices = {device for keys in drawn for words in keys for device in words.devices()}
    assert devices == {jax.local_devices(backend="cpu")[0]}
    jax.tree.map(np.testing.assert_array_equal, states, learn()[1])


def test_every_update_is_that_of_replay_on_a_device_to_the_bit() -> None:
    agent, batches = agent_of(), slots()
    trained = with_finite_updates(with_device_replay(agent, batches[0]))
    mesh = LearnerMesh(jax.local_devices()[:1])
    state = mesh.place_state(dataclasses.replace(jax.jit(trained.init)(jax.random.key(0)), num_updates=np.int32(FIRST)))
    update = mesh.jit_update(trained, RUN_KEY)
    _, found = learn()
    for batch, (ours, our_metrics) in zip(batches, found, strict=True):
        state, metrics = update(state, batch)
        theirs = dataclasses.replace(state, extra=state.extra.extra)
        jax.tree.map(np.testing.assert_array_equal, ours, jax.device_get(theirs))
        for name, value in our_metrics.items():
            np.testing.assert_array_equal(value, metrics[name])
    assert our_metrics.keys() == metrics.keys()


def test_samples_for_one_device_are_not_placed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    placed, device_put = [], jax.device_put

    def counted(value, *arguments, **options):
        placed.extend(leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, np.ndarray) and leaf.ndim)
        return device_put(value, *arguments, **options)

    agent, batches = agent_of(), slots()
    mesh = HostReplayMesh(jax.local_devices()[:1])
    replay = HostReplay(agent, mesh, RUN_KEY, LocalReplayClient(agent.data, batches[0]))
    try:
        state = mesh.place_state(first_state(agent))
        for batch in batches:
            monkeypatch.setattr(jax, "device_put", counted)
            state, metrics = replay(state, batch)
            monkeypatch.undo()
        assert metrics["replay/gradient_steps"] > 0
    finally:
        replay.close()
    assert not placed
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), learn()[1][-1][0])


def test_an_update_without_gradient_steps_copies_no_parameters() -> None:
    agent, batches = agent_of(), slots()
    mesh = HostReplayMesh(jax.local_devices()[:1])
    replay = HostReplay(agent, mesh, RUN_KEY, LocalReplayClient(agent.data, batches[0]))
    try:
        before = mesh.place_state(first_state(agent))
        places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(before.params)]
        after, metrics = replay(before, batches[0])
    finally:
        replay.close()
    assert metrics["replay/gradient_steps"] == 0
    assert metrics[SKIPPED] == 0
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after.params)] == places
    assert int(after.num_updates) == FIRST + 1


@pytest.mark.parametrize("due", [0, 3])
def test_metrics_are_divided_in_one_program(due: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of()
    replay = HostReplay(
        agent, HostReplayMesh(jax.local_devices()[:1]), RUN_KEY, LocalReplayClient(agent.data, slots()[0])
    )
    try:
        sums = {f"metric_{number}": jax.numpy.float32(number) for number in range(9)}
        divided = []
        eager = type(sums["metric_0"]).__truediv__

        def counted(one, other):
            divided.append(other)
            return eager(one, other)

        monkeypatch.setattr(type(sums["metric_0"]), "__truediv__", counted)
        metrics = replay._metrics(sums if due else None, due)
        assert not [each for each in divided if not isinstance(each, jax.core.Tracer)]
    finally:
        replay.close()
    for name in sums if due else ():
        assert metrics[name] == np.float32(sums[name]) / np.float32(due)
    assert metrics["replay/gradient_steps"] == due


@pytest.mark.parametrize(("devices", "lag"), [(1, 0), (1, 2), (3, 2), (2, 5)])
def test_samples_are_prepared_with_bounded_lag(devices, lag):
    """The agent's `opt_state` counts its gradient steps; so does the state that prepared a sample, by `extra`."""

    def note_version(params, extra, sample, key):
        seen = jnp.full_like(sample.trajectory.reward, extra["inner"][0])
        return dataclasses.replace(sample, trajectory=dataclasses.replace(sample.trajectory, extras={"seen": seen}))

    replay = Replay(
        dataclasses.replace(CONFIG, gradient_steps_per_env_step=0.75), sequence_length=2, transforms=(note_version,)
    )
    counting = make_counting(replay)

    def update(state, sample, key):
        state, _, priority = counting.update(state, sample, key)
        # Powers of 1.5 count the steps. A gradient step writes down which one prepared its sample.
        return state, {"steps": jnp.log(sample.trajectory.extras["seen"][0, 0]) / jnp.log(1.5)}, priority

    agent, batches = counting._replace(update=update), slots()
    mesh = HostReplayMesh(jax.local_devices()[:1])
    preparer = SamplePreparer(agent, jax.local_devices()[1 : 1 + devices], RUN_KEY, lag)
    experience = LocalReplayClient(agent.data, batches[0])
    prepared = HostReplay(agent, mesh, RUN_KEY, experience, preparer)
    state, taken, means = mesh.place_state(first_state(agent)), 0, []
    try:
        for batch in batches:
            state, metrics = prepared(state, batch)
            due = int(metrics["replay/gradient_steps"])
            expected = [taken + max(0, number - lag) for number in range(due)]
            means.append(sum(expected) / due if due else 0.0)
            np.testing.assert_allclose(metrics.get("steps", 0.0), means[-1], rtol=1e-4)
            taken += due
        assert prepared.totals()["prepare/busy_seconds"] > 0.0
    finally:
        prepared.close()
    assert taken > 3 * UPDATES
