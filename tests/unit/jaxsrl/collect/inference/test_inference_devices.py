"""Inference on any device: everything that calls need is there, and nothing compiles while environments wait."""

import contextlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EpisodeReset
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.inference.act import make_act, take_rows
from jaxsrl.collect.inference.server import InferenceServer
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.collect.serial import SerialCollector
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from tests.support.compilations import compilations
from tests.unit.jaxsrl.collect.inference.test_server import KEYS, SHAPE, FakePool, adding_agent, written


@contextlib.contextmanager
def default_device(index):
    """As the platform of an accelerator is the default one: for all threads, which a context of jax is not."""
    jax.config.update("jax_default_device", jax.devices()[index] if index else None)
    try:
        yield
    finally:
        jax.config.update("jax_default_device", None)


CALLS = ([0], [2, 3], [0, 2], [0, 1, 2], [1, 3], [0, 1, 2, 3])
# (default device, device that acts): a learner on the first device with inference beside it, and an accelerator as default with
# inference on the host, which is device 0.
PLACES = [(0, 0), (0, 2), (1, 0), (3, 1)]


def remembering_agent():
    def act(params, observation, agent_state, is_first, keys, mode):
        luck = jax.vmap(lambda key: jax.random.randint(key, (), 0, 50))(keys)
        seen = observation[:, 0] + agent_state
        return luck + 100 * params + seen.astype(jnp.int32), {"seen": observation[:, 0]}, agent_state + 1.0

    return adding_agent()._replace(act=act, initial_agent_state=lambda num_rows: jnp.zeros(num_rows))


def run_calls(server, pool):
    """Serves CALLS one after the other in a thread, as a run does, without one transfer between devices."""
    turns, errors = list(CALLS), []

    def wait_ready(timeout_seconds, may_act):
        pool.positions = [divmod(len(CALLS) - len(turns), SHAPE.rollout_length)] * 4
        return turns.pop(0)

    def body():
        try:
            with jax.transfer_guard_device_to_device("disallow"):
                server.run(lambda: not turns)
        except Exception as error:  # noqa: BLE001  raised again below, in the test's thread
            errors.append(error)

    pool.wait_ready = wait_ready
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def served(programs, default, acting, merge, agent, **kwargs):
    """(pool, server, what compiled after warming up) of a server that was started and has served CALLS."""
    device = jax.devices()[acting]
    pool, store = FakePool([(0, 0)] * 4), ParamsStore(1)
    with default_device(default):
        params = jax.device_put(jnp.int32(3), device)
        store.publish(0, params)
        server = InferenceServer(pool, agent, store, KEYS, device, merge, **kwargs)
        server.warm_up(params)
        warm = len(programs)
        run_calls(server, pool)
    return pool, server, programs[warm:]


@pytest.mark.parametrize(("default", "acting"), PLACES)
@pytest.mark.parametrize("merge", [False, True])
def test_warm_server_neither_compiles_nor_transfers(default, acting, merge):
    with compilations() as programs:
        pool, _, late = served(programs, default, acting, merge, adding_agent())
    assert late == []
    assert sum(program == "jit(act_on_rows)" for _, program in programs) == (3 if merge else 1)
    assert len(written(pool)) == sum(len(call) for call in CALLS)


@pytest.mark.parametrize(("default", "acting"), PLACES)
def test_what_a_policy_remembers_stays_on_the_device_that_acts(default, acting):
    with compilations() as programs:
        _, server, late = served(programs, default, acting, False, remembering_agent())
    assert late == []
    device = jax.devices()[acting]
    on_device = [server._keys, *server._agent_states]
    assert {found for array in on_device for found in array.devices()} == {device}
    assert [float(state[0]) for state in server._agent_states] == [
        sum(lane in call for call in CALLS) for lane in range(4)
    ]


@pytest.mark.parametrize(("default", "acting"), PLACES)
def test_agent_state_is_split_on_the_acting_device(default, acting, monkeypatch):
    divided: list[set[jax.Device]] = []

    def noted(state, rows):
        divided.append(take_rows(state, rows).devices())
        return take_rows(state, rows)

    monkeypatch.setattr("jaxsrl.collect.inference.server.take_rows", noted)
    served([], default, acting, False, remembering_agent())
    assert divided
    assert all(devices == {jax.devices()[acting]} for devices in divided)


@pytest.mark.parametrize("merge", [False, True])
def test_every_device_gives_the_same_actions_packed_or_not(merge):
    found = []
    for default, acting in PLACES:
        for platform in ("cpu", "gpu"):
            act = make_act(adding_agent(), platform=platform)
            pool, _, _ = served([], default, acting, merge, adding_agent(), act=act)
            found.append(written(pool))
    assert all(each == found[0] for each in found)
    assert len(found[0]) == sum(len(call) for call in CALLS)


@pytest.mark.parametrize(("default", "acting"), PLACES)
def test_the_serial_source_acts_on_its_device_alone(default, acting):
    config = RunConfig(num_envs=3, rollout_length=4, plan="serial", max_policy_lag=0)
    source = make_env(EnvConfig("CartPole-v1"))
    spec, agent = source.spec(), cartpole_agent()
    device = jax.devices()[acting]
    with default_device(default):
        plan = PLANS["serial"](config, Resources.detect())
        made = CollectorConfig(source, spec, plan, agent, 0, 0, jax.random.key(7), np.zeros(3, np.float32))
        serial = SerialCollector(made, device)
        params = jax.device_put(jnp.int32(1), device)
        serial.publish(0, params)
        serial.start(EpisodeReset((0,) * 3, (None,) * 3))
        with compilations() as programs:
            assert serial.acquire(1.0) == 0
            warm = len(programs)
            serial.publish(1, params)
            with jax.transfer_guard_device_to_device("disallow"):
                assert serial.acquire(1.0) == 1
    serial.close()
    assert programs[warm:] == []
    assert serial._keys.devices() == serial._agent_state.devices() == {device}


def test_serial_collector_continues_beyond_32_bits_of_steps():
    config = RunConfig(num_envs=3, rollout_length=4, plan="serial", max_policy_lag=0)
    source = make_env(EnvConfig("CartPole-v1"))
    plan, first = PLANS["serial"](config, Resources.detect()), 2**32 // 4 - 1
    agent, device = cartpole_agent(), jax.devices()[0]
    made = CollectorConfig(source, source.spec(), plan, agent, 0, first, jax.random.key(7), np.zeros(3, np.float32))
    serial = SerialCollector(made, device)
    serial.start(EpisodeReset((0,) * 3, (None,) * 3))
    for sequence in (first, first + 1):
        serial.publish(sequence, jnp.int32(1))
        assert serial.acquire(1.0) == sequence
        for t in range(4):
            steps = np.full(3, (4 * sequence + t) % 2**32, np.uint32)
            keys = jax.vmap(jax.random.fold_in)(serial._keys, steps)
            expected = jax.vmap(lambda key: jax.random.randint(key, (), 0, 2))(keys)
            np.testing.assert_array_equal(serial.slots(sequence)[0].action[t], expected)
    serial.close()


def cartpole_agent():
    def act(params, observation, agent_state, is_first, keys, mode):
        luck = jax.vmap(lambda key: jax.random.randint(key, (), 0, 2))(keys)
        return luck * params, {}, agent_state + 1.0

    return adding_agent()._replace(act=act, initial_agent_state=lambda num_rows: jnp.zeros(num_rows), extras={})
