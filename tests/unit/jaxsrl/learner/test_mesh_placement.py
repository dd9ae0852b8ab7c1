"""Batches and parameters arrive on the devices of a mesh as they were, with as few transfers as possible."""

import jax
import numpy as np
import pytest

from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import SlotViews, allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.collect.pool import PoolCollector
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.devices import on_device

DEVICES = jax.local_devices()
STEPS = 16
SPEC = EnvSpec("Frames", ArraySpec((64, 40), "uint8"), DiscreteSpec(4))  # 41 kB a step of 16 rows: large leaves


def slot_of(rows: int, seed: int) -> SlotViews:
    slot = allocate_slots(make_layout(SPEC, PoolShape(1, 1, 1, rows, STEPS, 1), {}))[0]
    draw = np.random.default_rng(seed)
    for array in (slot.frames, slot.reward, slot.action):
        array[...] = draw.integers(0, 200, array.shape)
    return slot


def addresses(array: jax.Array) -> dict[jax.Device, int]:
    return {shard.device: shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}


def published(params: dict[str, jax.Array], devices: list[jax.Device]) -> dict[jax.Device, dict[str, jax.Array]]:
    """What the servers of each device would act with."""
    source = object.__new__(PoolCollector)  # no environment is needed, nor started
    source._stores = {device: ParamsStore(1) for device in devices}
    source._pools = []
    source.publish(0, params)
    found = {}
    for device, store in source._stores.items():
        acting = store.acting(0, 1.0)
        assert acting is not None
        found[device] = acting[1]
    return found


def test_published_params_are_existing_shards_of_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = LearnerMesh(DEVICES)
    state = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}
    params = mesh.copy_params(jax.device_put(state, mesh.replicated))
    transfers = []
    put = jax.device_put

    def counted(tree, *rest, **options):
        transfers.append(tree)
        return put(tree, *rest, **options)

    monkeypatch.setattr(jax, "device_put", counted)
    found = published(params, DEVICES)
    assert not transfers
    for device, theirs in found.items():
        for name, leaf in theirs.items():
            assert leaf.devices() == {device}
            assert leaf.unsafe_buffer_pointer() == addresses(params[name])[device]
            np.testing.assert_array_equal(leaf, state[name])


def test_params_reach_another_device_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = LearnerMesh(DEVICES[:2])
    state = {name: np.full(3, number, np.float32) for number, name in enumerate("abcd")}
    params = mesh.copy_params(jax.device_put(state, mesh.replicated))
    transfers, put = [], jax.device_put

    def counted(tree, *rest, **options):
        transfers.append([leaf.devices() for leaf in jax.tree.leaves(tree)])
        return put(tree, *rest, **options)

    monkeypatch.setattr(jax, "device_put", counted)
    (theirs,) = published(params, DEVICES[3:]).values()
    assert transfers == [[{DEVICES[0]}] * 4]  # from one device: not once for each that has them
    for name, leaf in theirs.items():
        assert leaf.devices() == {DEVICES[3]}
        np.testing.assert_array_equal(leaf, state[name])


@pytest.mark.parametrize(
    ("rows", "count"), [((16,), 4), ((16,), 1), ((8, 8), 4), ((4, 12), 4), ((8, 8), 2), ((16, 16), 1)]
)
def test_a_batch_holds_the_rows_of_all_slots_in_order(rows: tuple[int, ...], count: int) -> None:
    mesh = LearnerMesh(DEVICES[:count])
    for seed in range(3):  # memory of the first is used again by the third
        slots = [slot_of(each, seed + 10 * place) for place, each in enumerate(rows)]
        batch = mesh.place_batch(slots)
        share = sum(rows) // count
        for field in ("frames", "action", "reward", "is_first", "valid"):
            whole = np.concatenate([getattr(slot, field) for slot in slots], axis=1)
            placed = getattr(batch, "observation" if field == "frames" else field)
            np.testing.assert_array_equal(placed, whole)
            assert placed.sharding.is_equivalent_to(mesh.rows, whole.ndim)
            for shard in placed.addressable_shards:
                place = DEVICES.index(shard.device)
                np.testing.assert_array_equal(shard.data, whole[:, place * share : (place + 1) * share])


def test_held_batches_keep_their_values_during_placement() -> None:
    mesh = LearnerMesh(DEVICES)
    slots = [slot_of(16, seed) for seed in range(12)]
    held = [(slot.frames.copy(), mesh.place_batch([slot])) for slot in slots]
    for wanted, batch in held:
        np.testing.assert_array_equal(batch.observation, wanted)


def test_memory_for_the_devices_rows_is_used_again() -> None:
    mesh, slot, places = LearnerMesh(DEVICES), slot_of(16, 0), set()
    for _ in range(5):
        batch = jax.block_until_ready(mesh.place_batch([slot]))
        places.add(tuple(addresses(batch.observation)[device] for device in DEVICES))
        del batch
    assert len(places) <= 2  # new memory costs as much as the copy


def test_a_slot_on_one_device_of_the_host_is_not_copied() -> None:
    mesh, slot = LearnerMesh(DEVICES[:1]), slot_of(16, 0)
    batch = mesh.place_batch([slot])
    assert batch.observation.unsafe_buffer_pointer() == slot.frames.ctypes.data


def test_published_params_of_one_device_are_used_as_they_are(monkeypatch):
    device = jax.local_devices()[1]
    mesh = LearnerMesh([device])
    params = jax.device_put({"w": np.ones(3, np.float32)}, mesh.replicated)
    copied = mesh.copy_params(params)
    assert copied["w"].unsafe_buffer_pointer() != params["w"].unsafe_buffer_pointer()
    assert isinstance(copied["w"].sharding, jax.sharding.SingleDeviceSharding)  # no shards to search
    monkeypatch.setattr(jax, "device_put", lambda *_: pytest.fail("the array was placed again"))
    assert on_device(copied, device)["w"] is copied["w"]


def test_parameters_of_a_server_elsewhere_arrive_on_the_device():
    mesh, params = LearnerMesh(DEVICES[:1]), {"w": jax.device_put(np.arange(3.0, dtype=np.float32), DEVICES[1])}
    copied = mesh.copy_params(params)
    assert copied["w"].devices() == {DEVICES[0]}
    assert copied["w"].tolist() == [0.0, 1.0, 2.0]
