"""Exported policies act like the agents that they were made from; other policies are rejected before anything is written."""

import dataclasses
import importlib.util

import jax
import numpy as np
import pytest

from agents.api import Mode
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.offline.decision_transformer import DecisionTransformerConfig, make_decision_transformer
from agents.ppo import PPOConfig, make_ppo
from agents.r2d2 import R2D2Config, make_r2d2
from agents.sac import SACConfig, make_sac
from agents.td3 import TD3Config, make_td3
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.evaluation.export import export
from jaxsrl.evaluation.export.export import export_policy
from jaxsrl.evaluation.export.validate_export import load_policy

SMALL = NetworkConfig(hidden_sizes=(8, 8))
VECTOR = ArraySpec((3,), "float32", -2.0, 2.0)
FRAMES = ArraySpec((36, 36, 2), "uint8", 0, 255)
DISCRETE = EnvSpec("Discrete-v0", VECTOR, DiscreteSpec(4))
BOX = EnvSpec("Box-v0", VECTOR, ArraySpec((2,), "float32", -1.0, 1.0))
IMAGES = EnvSpec("Images-v0", FRAMES, DiscreteSpec(4))

CASES = {
    "ppo discrete": (make_ppo, PPOConfig(), DISCRETE, {}),
    "ppo box": (make_ppo, PPOConfig(), BOX, {}),
    "ppo gsde": (make_ppo, PPOConfig(), BOX, {"sde_period": 4}),
    "ppo state-dependent": (make_ppo, PPOConfig(), BOX, {"log_std": "state"}),
    "ppo gru": (make_ppo, PPOConfig(), DISCRETE, {"core": "gru", "core_size": 8}),
    "ppo lstm": (make_ppo, PPOConfig(), BOX, {"core": "lstm", "core_size": 8}),
    "ppo gtrxl": (
        make_ppo,
        PPOConfig(),
        DISCRETE,
        {"core": "gtrxl", "core_size": 8, "core_heads": 2, "core_memory": 4},
    ),
    "ppo layer norm": (make_ppo, PPOConfig(), BOX, {"layer_norm": True, "activation": "gelu", "squash": True}),
    "ppo nature cnn": (make_ppo, PPOConfig(), IMAGES, {"torso": "nature_cnn"}),
    "ppo resnet": (make_ppo, PPOConfig(), IMAGES, {"torso": "impala_resnet"}),
    "dqn": (make_dqn, DQNConfig(epsilon_start=0.1, epsilon_end=0.1), DISCRETE, {}),
    "r2d2": (make_r2d2, R2D2Config(), DISCRETE, {"core": "lstm", "core_size": 8}),
    "sac": (make_sac, SACConfig(), BOX, {}),
    "td3": (make_td3, TD3Config(), BOX, {}),
}


# Observations are a dictionary with the last reward.
TRANSFORMED = {
    "discrete": EnvSpec(
        "Discrete-v0", {"last_reward": ArraySpec((), "float32"), "observation": VECTOR}, DiscreteSpec(4)
    ),
    "box": EnvSpec("Box-v0", {"last_reward": ArraySpec((), "float32"), "observation": VECTOR}, BOX.action),
}


def made(case, **changes):
    make, config, spec, network = CASES[case]
    agent = make(config, spec, dataclasses.replace(SMALL, **network, **changes))
    return agent, agent.init(jax.random.key(1)).params, spec


def first_actions(agent, params, observation):
    """Greedy actions of the first step, computed by the agent itself."""
    rows = len(observation)
    keys = jax.random.split(jax.random.key(0), rows)
    state, first = agent.initial_agent_state(rows), np.ones(rows, bool)
    return np.asarray(agent.act(params, observation, state, first, keys, Mode.GREEDY)[0])


@pytest.mark.parametrize("case", CASES)
def test_numpy_policy_acts_like_the_agent(tmp_path, case):
    agent, params, spec = made(case)
    policy = load_policy(export_policy(agent, params, spec, tmp_path / "out", to="numpy"))
    random = np.random.default_rng(3)
    leaf = spec.observation
    observation = (random.random((6, *leaf.shape)) * (250 if leaf.dtype == "uint8" else 1)).astype(leaf.dtype)
    action, state = policy(observation)
    expected = first_actions(agent, params, observation)
    expected = expected if isinstance(spec.action, DiscreteSpec) else np.clip(expected, -1, 1)
    np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-4)
    one, _ = policy(observation[0])
    np.testing.assert_allclose(one, expected[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="keep the rows of a batch") if state else pytest.raises(ValueError):
        policy(observation[:2, ..., :1] if not state else observation[:2], state)


@pytest.mark.skipif(importlib.util.find_spec("flatbuffers") is None, reason="jax.export needs flatbuffers")
@pytest.mark.parametrize("case", ["ppo discrete", "ppo gsde", "ppo lstm", "ppo nature cnn", "dqn", "sac"])
def test_jax_policy_is_bit_equal_to_the_agent(tmp_path, case):
    agent, params, spec = made(case)
    out = export_policy(agent, params, spec, tmp_path / "out", to="jax")
    assert {file.name for file in out.iterdir()} == {
        "policy.py",
        "policy.npz",
        "policy.json",
        "greedy.bin",
        "sampled.bin",
    }
    sampled = [load_policy(out, sample=True, seed=seed)(np.ones((64, *spec.observation.shape)))[0] for seed in (0, 1)]
    assert not np.array_equal(*sampled)


@pytest.mark.parametrize("to", ["numpy", "jax"])
@pytest.mark.parametrize("case", TRANSFORMED)
def test_a_decision_transformer_is_exported(tmp_path, case, to):
    if to == "jax":
        pytest.importorskip("flatbuffers", reason="jax.export needs flatbuffers")
    spec = TRANSFORMED[case]
    config = DecisionTransformerConfig(context_length=3, num_layers=1, embedding_size=8, target_return=5.0)
    agent = make_decision_transformer(config, spec, SMALL)
    params = agent.init(jax.random.key(1)).params
    policy = load_policy(export_policy(agent, params, spec, tmp_path / "out", to=to))
    observation, is_first = {"last_reward": np.ones(6, np.float32), "observation": np.ones((6, 3), np.float32)}, True
    state, own_state, keys = None, agent.initial_agent_state(6), jax.random.split(jax.random.key(0), 6)
    for _ in range(5):  # more steps than the context has
        action, state = policy(observation, state)
        firsts = np.full(6, is_first)
        expected, _, own_state = agent.act(params, observation, own_state, firsts, keys, Mode.GREEDY)
        np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-4)
        is_first = False
        observation = {name: value * 0.5 for name, value in observation.items()}


def test_unsupported_policies_are_rejected_before_files(tmp_path):
    agent, params, spec = made("ppo discrete", dtype="bfloat16")
    with pytest.raises(UserError, match="bfloat16, which the export to numpy does not support: use --to jax"):
        export_policy(agent, params, spec, tmp_path / "new" / "out", to="numpy")
    assert not list(tmp_path.iterdir())


def test_export_keeps_directories_with_contents(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match="is not an empty directory: choose another --out"):
        export_policy(*made("ppo discrete"), tmp_path, to="numpy")
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_policies_that_differ_are_not_exported(tmp_path, monkeypatch):
    agent, params, spec = made("ppo box")
    network = export._numpy_network

    def changed(function, params):
        text, arrays = network(function, params)
        return text, {name: array * 1.1 for name, array in arrays.items()}

    monkeypatch.setattr(export, "_numpy_network", changed)
    with pytest.raises(UserError, match="differs from the original"):
        export_policy(agent, params, spec, tmp_path / "out", to="numpy")
    assert not list(tmp_path.iterdir())
