"""Devices of a plan's fragments and their replicas."""

from jaxsrl.machine.devices import Device, local_devices, run_devices
from jaxsrl.plan.fragment import Devices, Fragment


def devices_of(fragment: Fragment) -> list[Device]:
    """Returns the fragment's devices, in order; the first one of the default platform where it has no device of its own."""
    placement = fragment.placement
    if not isinstance(placement, Devices):
        return local_devices()[:1]
    devices = run_devices(placement.platform)
    return [devices[index] for index in placement.indices]


def device_of_each_replica(fragment: Fragment) -> list[Device]:
    """Returns the first device of every replica."""
    placement = fragment.placement
    if not isinstance(placement, Devices):
        return devices_of(fragment) * fragment.replicas
    devices = run_devices(placement.platform)
    firsts = [placement.of_replica(replica, fragment.replicas)[0] for replica in range(fragment.replicas)]
    return [devices[index] for index in firsts]
