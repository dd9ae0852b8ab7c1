"""What holds to the bit or nearly on the CPU, on an accelerator."""

import jax
import numpy as np
import pytest

from agents.api import Replay, ReplayConfig
from jaxsrl.collect.inference.act import fetch, make_act, row_keys
from jaxsrl.learner.finite_updates import with_finite_updates
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.host_replay import HostReplay, HostReplayMesh
from jaxsrl.learner.loop import Learner
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.split_cpu import host_device
from jaxsrl.replay.client import LocalReplayClient
from jaxsrl.replay.on_device import with_device_replay
from tests.gpu.made_slots import fill, ppo, random_slots, same
from tests.support.counting_agent import make_counting
from tests.support.replay_model import Stream

pytestmark = pytest.mark.gpu


class TwoSlots:
    """A source of two slots at lag 0 that are overwritten with NaN as soon as they are given back."""

    def __init__(self, agent, copies):
        self._slots, self._random = random_slots(agent, count=2), np.random.default_rng(3)
        self._copies, self._next = copies, 0

    def publish(self, version, params):
        del version, params

    def acquire(self, timeout_seconds):
        del timeout_seconds
        fill(self._slots[self._next % 2], self._random)
        self._next += 1
        return self._next - 1

    def slots(self, sequence):
        slot = self._slots[sequence % 2]
        if not self._copies:
            return [slot]
        (copy,) = random_slots(ppo())
        for name in (
            "frames",
            "action",
            "reward",
            "is_first_frames",
            "terminated",
            "truncated",
            "valid",
            "policy_version",
        ):
            getattr(copy, name)[...] = getattr(slot, name)
        copy.extras["behavior_log_prob"][...] = slot.extras["behavior_log_prob"]
        return [copy]

    def release(self, sequence):
        slot = self._slots[sequence % 2]
        for array in (slot.frames, slot.reward, slot.extras["behavior_log_prob"]):
            array[...] = np.nan


@pytest.mark.seconds(40)
def test_slots_given_back_are_not_read_again(row, size):
    agent, updates, found = ppo(num_epochs=1), size(3_000, 30), []
    for copies in (False, True):
        mesh = LearnerMesh(jax.local_devices()[:1])
        update = mesh.jit_update(agent, jax.random.key(1))
        learner = Learner(mesh, TwoSlots(agent, copies), agent.init(jax.random.key(0)), update)
        for _ in range(updates):
            assert learner.step(lambda slots: None)
        found.append(jax.device_get(learner.state.params))
    assert same(*found)
    row("two slots at lag 0, NaN once given back", f"{updates} updates equal those of copied slots")


def acted_slot(agent, device, steps):
    """A slot whose actions and log-probabilities a device chose for its observations."""
    (slot,) = random_slots(agent, steps=steps)
    params = jax.device_put(jax.jit(agent.init)(jax.random.key(0)).params, device)
    act, keys = (
        make_act(agent, platform=device.platform),
        row_keys(jax.device_put(jax.random.key(2), device), range(64)),
    )
    for t in range(steps):
        number = np.full(64, t, np.uint32)
        action, extras, _ = fetch(act(params, slot.observation[t], (), slot.is_first[t], keys, number))
        slot.action[t], slot.extras["behavior_log_prob"][t] = action, extras["behavior_log_prob"]
    return slot


@pytest.mark.seconds(30)
def test_first_minibatch_at_lag_0_has_ratio_one(row):
    found = {}
    for acting in (host_device(), jax.local_devices()[0]):
        for precision in ("default", "highest"):
            with jax.default_matmul_precision(precision):
                agent = ppo(num_epochs=1, num_minibatches=1)
                slot, mesh = acted_slot(agent, acting, 32), LearnerMesh(jax.local_devices()[:1])
                state = mesh.place_state(jax.jit(agent.init)(jax.random.key(0)))
                _, metrics = mesh.jit_update(agent, jax.random.key(1))(state, mesh.place_batch([slot]))
                found[acting.platform, precision] = abs(float(metrics["policy/approx_kl"]))
    results = ", ".join(f"acting on {on}, {precision}: {kl:.1e}" for (on, precision), kl in found.items())
    row("|approx_kl| of the first minibatch at lag 0, by matmul precision", results, "0 but for rounding")
    assert all(kl < 1e-3 for kl in found.values())
    assert all(kl < 1e-5 for (_, precision), kl in found.items() if precision == "highest")


@pytest.mark.seconds(30)
@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_host_and_device_replay_sample_the_same(exponent, row):
    config = ReplayConfig(
        capacity=120, batch_size=8, min_size=20, gradient_steps_per_env_step=0.25, priority_exponent=exponent
    )
    agent, stream = make_counting(Replay(config, sequence_length=2)), Stream(rows=4, steps=3, frames=2)
    slots = [jax.device_get(stream.slot()) for _ in range(40)]
    run_key, devices = jax.random.key(5), jax.local_devices()[:1]
    trained, mesh = with_device_replay(agent, slots[0]), HostReplayMesh(devices)
    update = LearnerMesh(devices).jit_update(with_finite_updates(trained), run_key)
    on_device = LearnerMesh(devices).place_state(jax.jit(trained.init)(jax.random.key(0)))
    on_host = mesh.place_state(jax.jit(agent.init)(jax.random.key(0)))
    replay = HostReplay(agent, mesh, run_key, LocalReplayClient(agent.data, slots[0]))
    try:
        for slot in slots:
            on_device, _ = update(on_device, slot)
            on_host, _ = replay(on_host, slot)
        saved = jax.tree.map(np.array, replay.experience.to_arrays())
    finally:
        replay.close()
    kept = jax.device_get(on_device.extra.buffer)
    assert same(saved.storage, kept.storage)
    assert same(on_host.params, on_device.params)
    row(f"host and device replay, priority exponent {exponent}", "same samples and parameters to the bit")


def test_nonfinite_update_is_skipped_and_counted(row):
    agent, mesh = with_finite_updates(ppo()), LearnerMesh(jax.local_devices()[:1])
    state = mesh.place_state(jax.jit(agent.init)(jax.random.key(0)))
    update, watch = mesh.jit_update(agent, jax.random.key(1)), FiniteWatch(3)
    (good,), (bad,) = random_slots(agent), random_slots(agent)
    bad.reward[...] = np.nan
    skipped, stuck = [], []
    for slot in (good, bad, good, bad, bad, bad):
        before = jax.device_get((state.params, state.opt_state))
        state, metrics = update(state, mesh.place_batch([slot]))
        assert same(before, (state.params, state.opt_state)) == (slot is bad)
        stuck.append(watch.observe(metrics, (), wait=mesh.aliases_host))
        skipped.append(watch.skipped)
    assert skipped[-1] == 4
    assert stuck == [False] * 5 + [True]
    assert int(state.num_updates) == 6
    row("updates that are not finite", f"left out, counted: {skipped} of 6")


@pytest.mark.seconds(15)
def test_the_device_keeps_one_copy_of_the_replay_ring(row, size):
    config = ReplayConfig(
        capacity=size(20_000_000, 400_000), batch_size=64, min_size=20, gradient_steps_per_env_step=1 / 32
    )
    slot = jax.device_get(Stream(rows=4, steps=3, frames=2).slot())
    agent, mesh = (
        with_finite_updates(with_device_replay(make_counting(Replay(config, sequence_length=2)), slot)),
        LearnerMesh(jax.local_devices()[:1]),
    )
    state = jax.eval_shape(agent.init, jax.random.key(0))
    ring = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.extra.buffer.storage))
    memory = mesh.jit_update(agent, jax.random.key(1)).lower(state, slot).compile().memory_analysis()
    assert memory.temp_size_in_bytes < ring // 4
    row("update with replay on the device", f"ring {ring:,} bytes, temporary {memory.temp_size_in_bytes:,} bytes")
