"""Host replay of a run: it is closed where a checkpoint or a dataset does not fit it."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.names import REPLAY
from jaxsrl.config.parts import DatasetConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.training.collectors import CollectorFactory
from tests.support.run_configs import run_config
from tests.unit.jaxsrl.training.test_stop_rules import make_agent


def test_replay_that_cannot_be_restored_is_closed(monkeypatch):
    def fail(buffer):
        raise KeyboardInterrupt

    closed = []
    replay = SimpleNamespace(experience=SimpleNamespace(restore=fail), close=lambda: closed.append(True))
    monkeypatch.setattr(CollectorFactory, "open_replay", lambda self, agent: replay)
    monkeypatch.setattr("jaxsrl.training.collectors.restore_buffer", lambda template, arrays: template)
    plan = SimpleNamespace(num_rows=4, shape=SimpleNamespace(rollout_length=8))
    config, spec = run_config(num_envs=4, rollout_length=8), make_env("CartPole-v1").spec()
    setup: Any = SimpleNamespace(agent=make_agent(), plan=plan, config=config, spec=spec)
    factory = CollectorFactory(setup)
    assert factory.make_replay(None) is replay
    assert not closed
    with pytest.raises(KeyboardInterrupt):
        factory.make_replay({f"{REPLAY}.reward": np.zeros(1)})
    assert closed == [True]


def test_replay_whose_dataset_cannot_be_opened_is_closed(monkeypatch):
    def fail(*arguments):
        raise UserError("no dataset")

    closed = []
    client = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr("jaxsrl.training.collectors.LocalReplayClient", lambda *arguments: client)
    monkeypatch.setattr("jaxsrl.training.collectors.make_fixed_client", fail)
    config, spec = run_config(num_envs=4, rollout_length=8), make_env("CartPole-v1").spec()
    config = dataclasses.replace(config, dataset=DatasetConfig(path="none"))
    plan = SimpleNamespace(num_rows=4, shape=SimpleNamespace(rollout_length=8))
    setup: Any = SimpleNamespace(plan=plan, config=config, spec=spec)
    with pytest.raises(UserError, match="no dataset"):
        CollectorFactory(setup).open_replay(make_agent())
    assert closed == [True]
