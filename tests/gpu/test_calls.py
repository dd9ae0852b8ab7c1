"""How long single calls take: acting, placing a slot, an update's time on the host, publication, a checkpoint of replay."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from envpool_bridge.shm.slots import SlotAccess
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.collect.inference.act import fetch, make_act, row_keys
from jaxsrl.device_loop.loop import DeviceLearner
from jaxsrl.device_loop.program import make_run_keys
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.learner.finite_updates import with_finite_updates
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.devices import on_device
from jaxsrl.machine.split_cpu import host_device
from tests.gpu.made_slots import FRAMES, IMAGE, VECTOR, layout_of, median_ms, ppo, random_slots

pytestmark = pytest.mark.gpu


@pytest.mark.seconds(25)
@pytest.mark.parametrize(
    ("spec", "network"),
    [(VECTOR, "mlp"), (IMAGE, "nature_cnn"), (FRAMES, "nature_cnn")],
    ids=["mlp", "nature_cnn", "stacked frames"],
)
def test_latency_of_a_call(spec, network, row, size):
    agent = ppo(spec, NetworkConfig(network, (64,), activation="relu"))
    rows, device = size(64, 4), jax.local_devices()[0]
    (slot,) = random_slots(agent, spec, 2 * rows, 8)
    # Half of the rows, as a lane's: single frames of several steps are then no contiguous memory.
    acting = SlotAccess(layout_of(agent, spec, 2 * rows, 8)).act_rows(slot, 3, slice(0, rows))
    found = {}
    for name, where, platform in (
        ("host", host_device(), "cpu"),
        ("device", device, "cpu"),
        ("device, packed", device, "gpu"),
    ):
        params = jax.device_put(jax.jit(agent.init)(jax.random.key(0)).params, where)
        act, keys = make_act(agent, platform=platform), row_keys(jax.device_put(jax.random.key(2), where), range(rows))
        steps = np.zeros(rows, np.uint32)
        found[name] = median_ms(
            lambda act=act, params=params, keys=keys, steps=steps: fetch(
                act(params, acting.observation, (), acting.is_first, keys, steps)[:2]
            ),
            size(300, 3),
        )
    times = ", ".join(f"{name} {1e3 * milliseconds:,.0f} us" for name, milliseconds in found.items())
    row(f"a call of {network} on {spec.env_id}, {rows} rows, fetched", times)


@pytest.mark.seconds(15)
def test_time_to_place_a_slot(row, size):
    agent = ppo(IMAGE, NetworkConfig("nature_cnn", (64,), activation="relu"))
    rows, steps = size(256, 4), size(32, 2)
    (slot,) = random_slots(agent, IMAGE, rows, steps)
    counts = {1, jax.local_device_count()}
    for count in sorted(count for count in counts if rows % count == 0):
        mesh = LearnerMesh(jax.local_devices()[:count])
        milliseconds, megabytes = (
            median_ms(lambda mesh=mesh: mesh.place_batch([slot]), size(10, 2)),
            slot.frames.nbytes / 1e6,
        )
        row(
            f"a slot of {megabytes:,.0f} MB to {count} devices",
            f"{milliseconds:,.1f} ms",
            f"{megabytes / milliseconds:,.1f} GB/s",
        )


@pytest.mark.seconds(20)
def test_time_of_an_update_on_the_host(row, size):
    agent = with_finite_updates(ppo(network=NetworkConfig(hidden_sizes=(64,) * size(9, 1))))
    mesh = LearnerMesh(jax.local_devices()[:1])
    state = mesh.place_state(jax.jit(agent.init)(jax.random.key(0)))
    (slot,), update = random_slots(agent), mesh.jit_update(agent, jax.random.key(1))
    parts: dict[str, list[float]] = {"place": [], "dispatch": [], "publish": [], "whole": []}
    for _ in range(size(200, 3)):
        begin = time.perf_counter()
        batch = mesh.place_batch([slot])
        placed = time.perf_counter()
        state, _ = update(state, batch)
        dispatched = time.perf_counter()
        on_device(mesh.copy_params(state.params), mesh.devices[0])
        published = time.perf_counter()
        jax.block_until_ready(state)
        parts["place"].append(placed - begin)
        parts["dispatch"].append(dispatched - placed)
        parts["publish"].append(published - dispatched)
        parts["whole"].append(time.perf_counter() - begin)
    times = ", ".join(f"{name} {1e6 * np.median(seconds):,.0f} us" for name, seconds in parts.items())
    row(f"an update of {len(jax.tree.leaves(state.params))} leaves, 64 rows, T=32", times)


@pytest.mark.seconds(40)
def test_speed_of_device_only(row, size):
    envs, steps = size(8_192, 8), size(128, 8)
    env = CartPole()
    agent = ppo(env.spec(), num_epochs=4, num_minibatches=4)
    init_key, act_key, update_key = jax.random.split(jax.random.key(0), 3)
    keys = make_run_keys(0, act_key, update_key, envs)
    begin = time.perf_counter()
    mesh = LearnerMesh(jax.local_devices()[:1])
    learner = DeviceLearner(agent, env, mesh, steps, jax.jit(agent.init)(init_key), keys)
    compiled, updates = time.perf_counter() - begin, 1
    learner.step(1)
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < size(5.0, 0.0) or not done:
        learner.step(updates)
        done, updates = done + updates, min(2 * updates, 64)
    speed = done * envs * steps / (time.perf_counter() - begin)
    memory = learner._advance.memory_analysis()
    row(
        f"device_only CartPole-v1: {envs:,} rows, T={steps}, 4 epochs x 4 minibatches",
        f"{speed:,.0f} env steps/s",
        f"compiled in {compiled:.1f} s; temporary {memory.temp_size_in_bytes:,} bytes; goal 10 million",
    )


@pytest.mark.seconds(40)
@pytest.mark.parametrize("gigabytes", [1.0, 4.0])
def test_time_of_a_checkpoint_of_replay(gigabytes, row, size, tmp_path):
    if gigabytes > 1.0 and size(False, True):
        pytest.skip("not run: too large for a dry run")
    ring = jnp.zeros((8, size(int(gigabytes * 1e9 / 8), 1_000)), jnp.uint8)
    begin = time.perf_counter()
    arrays = {f"leaf_{number}": np.asarray(leaf) for number, leaf in enumerate(ring)}
    fetched_at = time.perf_counter()
    CheckpointStore(tmp_path / "checkpoints").save(1, arrays, {})
    saved = time.perf_counter() - fetched_at
    row(
        f"checkpoint of {ring.nbytes / 1e9:g} GB of replay",
        f"fetched in {fetched_at - begin:.1f} s, saved in {saved:.1f} s",
    )
