"""Arrays of an accelerator are copied to the host together, before the first is read."""

import jax
import numpy as np
import pytest

from jaxsrl.machine import devices
from jaxsrl.machine.devices import on_device, start_copies_to_host


class Elsewhere:
    """Stand-in for an array of an accelerator, which notes its copies to the host."""

    def __init__(self, noted, name):
        self._noted, self._name = noted, name

    def copy_to_host_async(self):
        self._noted.append(self._name)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(devices, "_is_elsewhere", lambda leaf: isinstance(leaf, Elsewhere))


def test_copies_of_all_arrays_of_accelerators_are_started():
    noted = []
    start_copies_to_host(
        {"a": Elsewhere(noted, "a"), "b": (np.zeros(2), Elsewhere(noted, "b")), "c": jax.numpy.ones(1)}
    )
    assert noted == ["a", "b"]


def test_parameters_for_the_host_are_copied_together(monkeypatch):
    noted = []
    monkeypatch.setattr(devices.jax, "device_put", lambda tree, device: noted.append("put"))
    on_device([Elsewhere(noted, "a"), Elsewhere(noted, "b")], jax.local_devices(backend="cpu")[0])
    assert noted == ["a", "b", "put"]
