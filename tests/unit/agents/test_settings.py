"""Values of nested configurations."""

import contextlib
import copy
import dataclasses
import pickle

import pytest

from agents.api import ReplayConfig
from agents.catalog import AGENTS
from agents.dqn import DQNConfig
from agents.ops.optimizers import OptimizerConfig
from agents.ppo import PPOConfig
from agents.sac import SACConfig
from envpool_bridge.errors import UserError
from tests.support.other_values import changes

DEFAULTS = {name: algorithm.config() for name, algorithm in AGENTS.items()}
NESTED = [
    (name, field.name)
    for name, config in DEFAULTS.items()
    for field in dataclasses.fields(config)
    if dataclasses.is_dataclass(getattr(config, field.name))
]


@pytest.mark.parametrize(("name", "field"), NESTED)
def test_a_nested_field_keeps_the_algorithms_other_values(name, field):
    default, tried = getattr(DEFAULTS[name], field), set()
    for changed, values in changes(default):
        for value in values:
            with contextlib.suppress(UserError):
                config = AGENTS[name].config(**{field: type(default)(**{changed: value})})
                assert getattr(config, field) == dataclasses.replace(default, **{changed: value})
                tried.add(changed)
    assert tried


def test_completed_values_stay_in_another_algorithm():
    for replay in (
        SACConfig().replay,
        copy.deepcopy(SACConfig().replay),
        pickle.loads(pickle.dumps(SACConfig().replay)),
    ):
        assert DQNConfig(replay=replay).replay == SACConfig().replay
    part = pickle.loads(pickle.dumps(ReplayConfig(500_000)))
    assert (part.capacity, part.batch_size) == (500_000, 256)
    assert SACConfig(replay=part).replay == dataclasses.replace(SACConfig().replay, capacity=500_000)
    assert PPOConfig(optimizer=OptimizerConfig(max_grad_norm=None)).optimizer.max_grad_norm is None
