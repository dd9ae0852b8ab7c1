"""Joining hands jax what each process was given."""

import jax
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.learners import processes
from jaxsrl.config.parts import DistributedConfig

TWO = {"coordinator": "127.0.0.1:7777", "num_processes": 2}


@pytest.mark.parametrize(("local_devices", "expected"), [((), None), ((0,), [0]), ((2, 3), [2, 3])])
def test_each_process_of_a_host_uses_its_own_devices(local_devices, expected, monkeypatch):
    given = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda **settings: given.update(settings))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(processes, "joined", lambda _: None)
    monkeypatch.setattr(processes, "_enter", lambda config, _: config.coordinator)
    processes.join(DistributedConfig(**TWO, process_id=1, local_devices=local_devices))
    assert given["local_device_ids"] == expected
    assert (given["num_processes"], given["process_id"]) == (2, 1)


@pytest.mark.parametrize("local_devices", [(0, 0), (-1,), (1, 2, 1)])
def test_devices_are_different_numbers_from_0(local_devices):
    with pytest.raises(UserError, match="local_devices must be different numbers from 0"):
        DistributedConfig(**TWO, process_id=0, local_devices=local_devices)
