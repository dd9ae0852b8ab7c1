"""Torsos of one's own in all kinds of agents."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.actor_critic import make_actor_critic
from agents.networks.config import NetworkConfig
from agents.networks.q_network import QOptions, make_q_network
from agents.ppo import PPOConfig, make_ppo
from agents.r2d2 import R2D2Config, make_r2d2
from agents.sac import SACConfig, make_sac
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.config.serialization import from_json, to_json

ROWS = 3
VECTOR, BOX = ArraySpec((3,), "float32"), ArraySpec((2,), "float32", -1.0, 1.0)
DISCRETE, CONTINUOUS = EnvSpec("discrete", VECTOR, DiscreteSpec(4)), EnvSpec("continuous", VECTOR, BOX)


class Sines(nn.Module):
    """Sines of a dense layer over everything."""

    config: NetworkConfig

    @nn.compact
    def __call__(self, inputs: Any) -> jax.Array:
        leaves = inputs.values() if isinstance(inputs, dict) else [inputs]
        joined = jnp.concatenate([leaf.reshape((leaf.shape[0], -1)) for leaf in leaves], axis=-1)
        return jnp.sin(nn.Dense(self.config.hidden_sizes[-1], name="only")(joined))


def too_wide(config: NetworkConfig) -> nn.Module:
    return nn.Dense(config.hidden_sizes[-1] + 1)


def no_module(config: NetworkConfig) -> str:
    return config.torso


SINES = NetworkConfig(f"{__name__}:Sines", hidden_sizes=(5,))
NUMBER = 3


def bound(name):
    replay = ReplayConfig(batch_size=4)
    match name:
        case "sac":
            return make_sac(SACConfig(replay), CONTINUOUS, SINES), CONTINUOUS
        case "dqn":
            return make_dqn(DQNConfig(replay, total_updates=9), DISCRETE, SINES), DISCRETE
        case "r2d2":
            config = R2D2Config(replay=replay, total_updates=9)
            return make_r2d2(config, DISCRETE, recurrent("lstm")), DISCRETE
    return make_ppo(PPOConfig(), DISCRETE, recurrent("lstm")), DISCRETE


def recurrent(core):
    return NetworkConfig(**(vars(SINES) | {"core": core, "core_size": 4}))


@pytest.mark.parametrize("name", ["ppo", "sac", "dqn", "r2d2"])
def test_agents_act_with_an_own_torso(name):
    agent, spec = bound(name)
    shapes = jax.eval_shape(agent.init, jax.random.key(0))
    names = {
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path((shapes.params, shapes.extra))
    }
    kernels = [name for name in names if "['only']['kernel']" in name]
    assert len(kernels) == {"ppo": 2, "sac": 3, "dqn": 2, "r2d2": 2}[name]
    assert not any("MLP" in name for name in names)
    observation, is_first = jnp.ones((ROWS, 3)), jnp.ones((ROWS,), bool)
    keys, state = jax.random.split(jax.random.key(0), ROWS), agent.initial_agent_state(ROWS)
    action, _, _ = jax.eval_shape(
        lambda *arguments: agent.act(*arguments, mode=Mode.SAMPLE), shapes.params, observation, state, is_first, keys
    )
    assert action.shape == (ROWS, *spec.action.shape)


def test_features_are_those_of_the_own_torso():
    net = make_q_network(SINES, DISCRETE, QOptions())
    shapes, rng = jax.eval_shape(net.init, jax.random.key(0)), np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    x, head = rng.normal(size=(ROWS, 3)).astype(np.float32), params["head"]["params"]
    only = params["torso"]["params"]["Sines_0"]["only"]
    hidden = np.tanh(
        np.sin(x @ only["kernel"] + only["bias"]) @ head["advantage_hidden"]["kernel"]
        + head["advantage_hidden"]["bias"]
    )
    expected = hidden @ head["advantage"]["kernel"] + head["advantage"]["bias"]
    np.testing.assert_allclose(jax.jit(net.outputs)(params, x, None)[..., 0], expected, rtol=1e-3, atol=1e-4)


def test_arrays_reach_an_own_torso_unchanged():
    image = {
        "camera": ArraySpec((5, 6, 1), "uint8", 0, 255),
        "gear": DiscreteSpec(3),
        "arm": ArraySpec((2, 2), "float32"),
    }
    net = make_actor_critic(
        NetworkConfig(f"{__name__}:Shapes", hidden_sizes=(5,)), EnvSpec("e", image, DiscreteSpec(2))
    )
    SEEN.clear()
    jax.eval_shape(net.init, jax.random.key(0))
    assert SEEN[0] == {
        "arm": ((1, 2, 2), "float32"),
        "camera": ((1, 5, 6, 1), "uint8"),
        "gear": ((1, 3), "float32"),
    }


SEEN: list[dict[str, tuple[tuple[int, ...], str]]] = []


class Shapes(nn.Module):
    """Records its inputs."""

    config: NetworkConfig

    @nn.compact
    def __call__(self, inputs: Any) -> jax.Array:
        SEEN.append({name: (leaf.shape, str(leaf.dtype)) for name, leaf in inputs.items()})
        return jnp.zeros((inputs["arm"].shape[0], self.config.hidden_sizes[-1]))


def test_own_torso_survives_a_configuration_file():
    assert from_json(NetworkConfig, to_json(SINES)) == SINES


@pytest.mark.parametrize(
    ("torso", "message"),
    [
        ("nowhere:Sines", "torso 'nowhere:Sines': expected 'module:name'.*No module named 'nowhere'"),
        (f"{__name__}:Missing", "has no attribute 'Missing'"),
        (f"{__name__}:NUMBER", "expected a function or class, got 3"),
        (f"{__name__}:no_module", "expected a flax.linen.Module, got"),
        (f"{__name__}:too_wide", r"expected features \[..., 5\], the last of hidden_sizes, got \(1, 6\)"),
    ],
)
def test_wrong_own_torso_is_rejected(torso, message):
    with pytest.raises(UserError, match=message):
        jax.eval_shape(make_actor_critic(NetworkConfig(torso, (5,)), DISCRETE).init, jax.random.key(0))


def test_unknown_torso_name_is_rejected():
    with pytest.raises(UserError, match="torso must be one of mlp, .*, or 'module:name' of your own: got 'resnet'"):
        NetworkConfig("resnet")
