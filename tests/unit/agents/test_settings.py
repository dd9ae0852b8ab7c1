"""Values of nested configurations."""

import contextlib
import copy
import dataclasses
import pickle

import pytest

from agents.api import ReplayConfig
from agents.catalog import AGENTS
from agents.dqn import DQNConfig
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig
from agents.ppo import PPOConfig
from agents.sac import SACConfig
from agents.search.puct import PUCTConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl import RunConfig
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


@pytest.mark.parametrize(
    ("name", "settings", "network", "message"),
    [
        ("dqn", {"v_max": 5.0}, {}, "v_max 5.0 has no effect: value_type is 'scalar'; omit it, or use 10.0"),
        ("ppo", {}, {"core_size": 8}, "network.core_size 8 has no effect: network.core is 'none'; omit it, or use 128"),
        (
            "ppo",
            {},
            {"squash": True},
            "network.squash True has no effect: the action is 'discrete'; omit it, or use False",
        ),
        ("r2d2", {"epsilon_decay_fraction": 0.1}, {"core": "gru"}, "no effect: epsilon_end - epsilon_start is 0.0"),
        (
            "ppo",
            {"optimizer": OptimizerConfig("adamw")},
            {},
            "optimizer.name 'adamw' has no effect: weight_decay is 0; omit it, or use 'adam'",
        ),
        ("ppo", {"target_kl": 0.1, "num_epochs": 1, "num_minibatches": 1}, {}, "target_kl needs more gradient steps"),
        ("td3", {"target_noise_clip": 0.0}, {}, "target_noise_clip must be positive: got 0.0"),
        ("dqn", {}, {"shared_torso": True}, "network.shared_torso True has no effect: a Q-network does not read it"),
        ("muzero", {"puct": PUCTConfig(8)}, {}, "puct.num_simulations 8 has no effect: search is 'gumbel'; omit it"),
    ],
)
def test_settings_without_effect_are_rejected(name, settings, network, message):
    spec = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(2))
    with pytest.raises(UserError, match=message):
        AGENTS[name].make(AGENTS[name].config(total_updates=9, **settings), spec, NetworkConfig(**network))


@pytest.mark.parametrize("config", [*DEFAULTS.values(), NetworkConfig(), RunConfig()], ids=lambda c: type(c).__name__)
def test_numbers_that_programs_cannot_compute_with_are_rejected(config):
    tried = 0
    for field in dataclasses.fields(config):
        if type(getattr(config, field.name)) in (int, float):
            for number in (10**20, float("inf"), float("nan")):
                with pytest.raises(UserError, match="smaller|must"):
                    dataclasses.replace(config, **{field.name: number})
            tried += 1
    assert tried > 1


@pytest.mark.parametrize(("seed", "seeds"), [(2**32, 1), (2**32 - 2, 3)])
def test_seeds_of_equal_keys_are_rejected(seed, seeds):
    assert RunConfig(seed=2**32 - 2, seeds=2).seed
    with pytest.raises(UserError, match=r"run.seed must be smaller than 2\*\*32"):
        RunConfig(seed=seed, seeds=seeds)


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
