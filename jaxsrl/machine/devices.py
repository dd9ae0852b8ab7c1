"""Devices of a run."""

from typing import Any

import jax

Device = Any  # a jax.Device, which type checkers do not know
_HOST = "pinned_host"


def run_devices(platform: str = "") -> list[Device]:
    """Returns the devices of a platform ("" for jax's default), of all processes of the run, sorted by process and id."""
    devices: list[Device] = jax.devices(platform or None)
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def local_devices() -> list[Device]:
    """Returns the devices of this process on jax's default platform."""
    return jax.local_devices()


def on_device(tree: Any, device: Device) -> Any:
    """Returns the tree on one device. Shards of replicated arrays that are already there are taken without a transfer.

    Args:
        tree: arrays that are replicated over their devices, or numpy arrays.
        device: device of this process.
    """
    shards = jax.tree.map(lambda leaf: _shard_at(leaf, device), tree)
    here = {device}
    # A `device_put` costs several times as much for a leaf as taking its shard, even where it returns that shard.
    if all(isinstance(leaf, jax.Array) and leaf.devices() == here for leaf in jax.tree.leaves(shards)):
        return shards
    if device.platform == "cpu":
        start_copies_to_host(shards)
    return jax.device_put(shards, device)


def start_copies_to_host(tree: Any) -> None:
    """Starts the copies of arrays of accelerators to the host, so that reading one after another waits once for all."""
    for leaf in jax.tree.leaves(tree):
        if _is_elsewhere(leaf):
            leaf.copy_to_host_async()


def host_memory(device: Device) -> jax.sharding.Sharding | None:
    """Returns the placement of arrays in host memory that a program of the device writes itself; None where it cannot."""
    kinds = [memory.kind for memory in device.addressable_memories()]
    return jax.sharding.SingleDeviceSharding(device, memory_kind=_HOST) if _HOST in kinds else None


def _is_elsewhere(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and next(iter(leaf.devices())).platform != "cpu"


def _shard_at(leaf: Any, device: Device) -> Any:
    """Returns a replicated array's shard on the device, or any one of its shards where the device has none."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf.sharding, jax.sharding.SingleDeviceSharding):
        return leaf
    shards = leaf.addressable_shards
    return next((shard for shard in shards if shard.device == device), shards[0]).data
