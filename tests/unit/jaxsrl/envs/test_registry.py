"""Which environments a configuration can name."""

import pickle
import sys

import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.registry import make_env, make_jax_env


def test_the_jax_suite_is_served_to_both_kinds_of_plan():
    config = EnvConfig(suite="jax", kwargs='{"max_steps": 30}', strict=False)
    assert make_jax_env(config) == CartPole(30)
    source = pickle.loads(pickle.dumps(make_env(config)))
    assert source.make_jax_env() == CartPole(30)
    assert not source.strict
    assert source.spec() == EnvConfig().source().spec()


def test_other_suites_go_to_the_pools_own_sources():
    for config in (
        EnvConfig("Pendulum-v1"),
        EnvConfig("MatchObservation", "probe"),
        EnvConfig(suite="gymnasium_vector"),
    ):
        mine, theirs = make_env(config), config.source()
        assert type(mine) is type(theirs)
        assert mine.spec() == theirs.spec()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            EnvConfig(suite="jax", id="Cartpole-v1"),
            "unknown environment 'Cartpole-v1' of suite 'jax'.*mean CartPole-v1?",
        ),
        (EnvConfig(suite="jax", kwargs='{"gravity": 1}'), "CartPole-v1 of suite 'jax': unknown option 'gravity'"),
        (EnvConfig(id="NoSuch-v0"), "unknown environment id 'NoSuch-v0'"),
    ],
)
def test_what_does_not_exist_is_refused(config, message):
    with pytest.raises(UserError, match=message):
        make_env(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(), "needs a JAX environment; CartPole-v1 has one: --env.suite jax"),
        (
            EnvConfig("ALE/Pong-v5", "atari"),
            "ALE/Pong-v5 of suite 'atari' is not one: expected a suite of brax, gymnax, jax",
        ),
    ],
)
def test_what_is_no_jax_environment_is_refused_on_a_device(config, message):
    with pytest.raises(UserError, match=message):
        make_jax_env(config)


def test_make_env_makes_jax_rows_from_the_config():
    with pytest.raises(UserError, match=r"suite 'gymnax' are made by jaxsrl.envs.registry.make_env"):
        EnvConfig(suite="gymnax").source()


@pytest.mark.parametrize("suite", ["gymnax", "brax", "jumanji"])
def test_a_missing_package_is_named_with_what_installs_it(suite, monkeypatch):
    for module in (suite, f"{suite}.envs"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"suite '{suite}' need a package.*pip install 'jaxsrl\[{suite}\]'"):
        make_env(EnvConfig("anything", suite, '{"not cached": 1}'))
