"""Options of all networks: type of the computation, layer norm, rematerialization, activations."""

import dataclasses
from collections.abc import Callable
from math import erf
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.actor_critic import make_actor_critic
from agents.networks.coma import make_coma_networks, team_view
from agents.networks.config import NetworkConfig
from agents.networks.continuous_actors import make_deterministic_actor, make_squashed_actor
from agents.networks.critics import make_critics
from agents.networks.maddpg import make_maddpg_networks
from agents.networks.mixer import make_monotone_mixer
from agents.networks.phasic import make_phasic
from agents.networks.policy_head import describe_narrow_policy
from agents.networks.q_network import QOptions, make_q_network
from agents.networks.team_values import make_team_values
from agents.networks.torsos.mlp import ACTIVATIONS
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec

STEPS, ROWS, TEAM = 2, 4, 2
VECTOR = EnvSpec("vector", ArraySpec((3,), "float32"), DiscreteSpec(3))
CONTINUOUS = EnvSpec("continuous", ArraySpec((3,), "float32"), ArraySpec((2,), "float32", -1.0, 1.0))
IMAGE = EnvSpec("image", ArraySpec((36, 36, 1), "uint8", 0, 255), DiscreteSpec(3))
MIXED = EnvSpec("mixed", {"camera": IMAGE.observation, "arm": VECTOR.observation}, DiscreteSpec(3))
ENTITIES = EnvSpec("entities", {"units": ArraySpec((5, 2), "float32"), "rays": VECTOR.observation}, DiscreteSpec(3))
AGENTS = tuple(AgentSpec(f"agent_{index}", VECTOR.observation, VECTOR.action) for index in range(TEAM))
SMALL_TEAM = EnvSpec("team", VECTOR.observation, VECTOR.action, agents=AGENTS)
SIZES = NetworkConfig(hidden_sizes=(8, 8), core_size=8, core_layers=1, core_heads=2, core_memory=2)


class Bound(NamedTuple):
    """A network, a function of its parameters alone, and how many of its products are heads."""

    init: Callable[[jax.Array], Any]
    outputs: Callable[[Any], Any]
    num_heads: int


def observations(spec, *lead):
    rng = np.random.default_rng(0)

    def leaf(of):
        drawn = rng.integers(0, 255, (*lead, *of.shape)) if of.dtype == "uint8" else rng.normal(size=(*lead, *of.shape))
        return jnp.asarray(drawn, of.dtype)

    return jax.tree.map(leaf, spec.observation, is_leaf=lambda node: isinstance(node, ArraySpec))


def actor_critic(spec, **changes):
    def bound(config):
        net = make_actor_critic(dataclasses.replace(config, **changes), spec)
        state, is_first = net.initial_state(ROWS), jnp.zeros((STEPS, ROWS), bool).at[0].set(True)
        return Bound(net.init, lambda params: net.unroll(params, observations(spec, STEPS, ROWS), state, is_first), 2)

    return bound


def q_network(spec, options, num_heads, **changes):
    def bound(config):
        net = make_q_network(dataclasses.replace(config, **changes), spec, options)
        state, is_first = net.initial_state(ROWS), jnp.zeros((STEPS, ROWS), bool).at[0].set(True)
        key = jax.random.key(1) if options.noisy_sigma else None
        x = observations(spec, STEPS, ROWS)
        return Bound(net.init, lambda params: net.unroll(params, x, state, is_first, key), num_heads)

    return bound


def critics(config):
    net = make_critics(config, CONTINUOUS, 2, 2)
    return Bound(net.init, lambda params: net.values(params, observations(CONTINUOUS, ROWS), jnp.ones((ROWS, 2))), 1)


def squashed(config):
    net = make_squashed_actor(config, CONTINUOUS, 2)
    return Bound(net.init, lambda params: net.parameters(params, observations(CONTINUOUS, ROWS)), 2)


def deterministic(config):
    net = make_deterministic_actor(config, CONTINUOUS, 2)
    return Bound(net.init, lambda params: net.action(params, observations(CONTINUOUS, ROWS)), 1)


def phasic(config):
    net = make_phasic(config, CONTINUOUS)
    return Bound(net.net.init, lambda params: net.outputs(params, observations(CONTINUOUS, ROWS)), 3)


def coma(config):
    net, x = make_coma_networks(config, SMALL_TEAM), observations(VECTOR, STEPS, ROWS)
    view = team_view(SMALL_TEAM, x, jnp.zeros((STEPS, ROWS), jnp.int32), jnp.ones((STEPS, ROWS), bool))
    return Bound(net.init, lambda params: net.action_values(params["critic"], view), 1)


def maddpg_critics(config):
    net, x = make_maddpg_networks(config, SMALL_TEAM, 3, shared=False), observations(VECTOR, ROWS)
    actions, present = jnp.ones((ROWS, TEAM, 3)), jnp.ones((ROWS,), bool)
    return Bound(net.init_critic, lambda params: net.value(params, x, present, actions), 1)


def maddpg_policies(config):
    net = make_maddpg_networks(config, SMALL_TEAM, 3, shared=True)
    return Bound(net.init_policy, lambda params: net.policy(params, observations(VECTOR, ROWS)), 1)


def team_values(config):
    net = make_team_values(config, SMALL_TEAM, make_monotone_mixer(config, SMALL_TEAM, 2), shared=True)
    x, present = observations(VECTOR, STEPS, ROWS), jnp.ones((STEPS, ROWS), bool)

    def outputs(params):
        values, _ = net.unroll(params, x, (), ~present)
        return values, net.mixed(params, values, jnp.zeros((STEPS, ROWS), jnp.int32), x, present)

    return Bound(net.init, outputs, 5)


NETWORKS = {
    "vector": actor_critic(VECTOR),
    "lstm": actor_critic(VECTOR, core="lstm"),
    "gru": actor_critic(VECTOR, core="gru"),
    "gtrxl": actor_critic(VECTOR, core="gtrxl"),
    "nature_cnn": actor_critic(IMAGE, torso="nature_cnn"),
    "impala_resnet": actor_critic(IMAGE, torso="impala_resnet"),
    "cnn": actor_critic(IMAGE, torso="cnn", convolutions=((4, 8, 4), (4, 3, 2))),
    "mixed": actor_critic(MIXED, torso="nature_cnn"),
    "entities": actor_critic(ENTITIES, torso="entities", circular=("rays",)),
    "q": q_network(VECTOR, QOptions(), 1),
    "rainbow": q_network(VECTOR, QOptions(3, dueling=True, noisy_sigma=0.5), 4),
    "r2d2": q_network(VECTOR, QOptions(), 1, core="lstm"),
    "critics": critics,
    "squashed": squashed,
    "deterministic": deterministic,
    "phasic": phasic,
    "coma": coma,
    "maddpg_critics": maddpg_critics,
    "maddpg_policies": maddpg_policies,
    "team_values": team_values,
}


def products(function, *arguments) -> list[tuple[str, ...]]:
    """Types of the operands of all matrix products and convolutions of a function."""

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in ("dot_general", "conv_general_dilated"):
                yield tuple(str(operand.aval.dtype) for operand in equation.invars)
            for value in jax.tree.leaves(equation.params, is_leaf=lambda node: hasattr(node, "eqns")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from walk(inner)

    return list(walk(jax.make_jaxpr(function)(*arguments).jaxpr))


def drawn(init):
    """Parameters of the shapes that `init` makes, drawn by numpy: orthogonal ones take seconds to compile."""
    shapes, rng = jax.eval_shape(init, jax.random.key(0)), np.random.default_rng(1)
    return jax.tree.map(lambda leaf: (0.3 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)


def dtypes(tree) -> set[str]:
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree)}


@pytest.mark.parametrize("name", NETWORKS)
def test_bfloat16_computes_all_but_the_heads(name):
    plain, bound = NETWORKS[name](SIZES), NETWORKS[name](dataclasses.replace(SIZES, dtype="bfloat16"))
    params = jax.eval_shape(bound.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, jax.eval_shape(plain.init, jax.random.key(0)))
    assert dtypes(params) == {"float32"}
    assert dtypes(jax.eval_shape(bound.outputs, params)) <= {"float32", "int32"}  # GTrXL counts its memory
    types = products(bound.outputs, params)
    assert len(types) > bound.num_heads
    assert types.count(("float32", "float32")) == bound.num_heads
    assert types.count(("bfloat16", "bfloat16")) == len(types) - bound.num_heads
    assert set(products(plain.outputs, params)) == {("float32", "float32")}


@pytest.mark.parametrize("name", ["gru", "gtrxl", "entities", "rainbow", "critics"])
def test_bfloat16_outputs_are_near_those_of_float32(name):
    plain, bound = NETWORKS[name](SIZES), NETWORKS[name](dataclasses.replace(SIZES, dtype="bfloat16"))
    params = drawn(plain.init)
    expected, outputs = (jax.tree.leaves(jax.jit(net.outputs)(params)) for net in (plain, bound))
    for exact, rounded in zip(expected, outputs, strict=True):
        np.testing.assert_allclose(rounded, exact, atol=0.05 * max(1.0, np.abs(exact).max()))
    assert any((exact != rounded).any() for exact, rounded in zip(expected, outputs, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_layer_norm_is_in_every_network(name):
    plain, bound = NETWORKS[name](SIZES), NETWORKS[name](dataclasses.replace(SIZES, layer_norm=True))
    before, after = (leaf_names(jax.eval_shape(net.init, jax.random.key(0))) for net in (plain, bound))
    assert before < after
    assert {name.rsplit("'", 2)[-2] for name in after - before} == {"scale", "bias"}
    assert jax.tree.map(jnp.shape, jax.eval_shape(bound.outputs, drawn(bound.init))) == jax.tree.map(
        jnp.shape, jax.eval_shape(plain.outputs, drawn(plain.init))
    )


def leaf_names(tree) -> set[str]:
    return {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def test_layer_norm_comes_before_the_activation():
    net = make_q_network(NetworkConfig(hidden_sizes=(5, 4), activation="relu", layer_norm=True), VECTOR, QOptions())
    params, x = drawn(net.init), np.random.default_rng(2).normal(size=(7, 3))
    torso, head = params["torso"]["params"]["torso"], params["head"]["params"]

    def hidden(dense, norm, inputs):
        y = inputs @ dense["kernel"] + dense["bias"]
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-6)
        return np.maximum(y * norm["scale"] + norm["bias"], 0.0)

    features = hidden(torso["Dense_0"], torso["LayerNorm_0"], x)
    features = hidden(head["advantage_hidden"], head["advantage_norm"], features)
    expected = features @ head["advantage"]["kernel"] + head["advantage"]["bias"]
    outputs = jax.jit(net.outputs)(params, x.astype(np.float32), None)
    np.testing.assert_allclose(outputs[..., 0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["lstm", "mixed", "q"])
def test_remat_changes_no_gradient(name):
    plain, bound = NETWORKS[name](SIZES), NETWORKS[name](dataclasses.replace(SIZES, remat=True))
    params = drawn(plain.init)

    def gradient(net):
        return jax.grad(lambda params: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(net.outputs(params))))

    assert len(products(gradient(bound), params)) > len(products(gradient(plain), params))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
        jax.jit(gradient(bound))(params),
        jax.jit(gradient(plain))(params),
    )


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("elu", lambda x: np.where(x > 0, x, np.exp(x) - 1)),
        ("gelu", lambda x: x / 2 * (1 + np.vectorize(erf)(x / 2**0.5))),
    ],
)
def test_activations_are_the_published_functions(activation, expected):
    x = np.linspace(-3, 3, 13)
    np.testing.assert_allclose(ACTIVATIONS[activation](x.astype(np.float32)), expected(x), atol=1e-3)


def test_unknown_dtype_is_rejected():
    with pytest.raises(UserError, match="dtype must be one of float32, bfloat16: got 'float16'"):
        NetworkConfig(dtype="float16")  # pyright: ignore[reportArgumentType]


OWN_CRITIC = dataclasses.replace(SIZES, hidden_sizes=(6,), critic_hidden_sizes=(5, 4))


@pytest.mark.parametrize("name", ["vector", "gru", "critics", "phasic", "coma", "maddpg_critics"])
def test_critics_have_their_own_sizes(name):
    params = jax.eval_shape(NETWORKS[name](OWN_CRITIC).init, jax.random.key(0))
    actor, critic = (params.get("actor"), params.get("critic", params))
    assert sorted(hidden_sizes(critic)) == [4, 5]
    assert actor is None or hidden_sizes(actor) == [6]


def hidden_sizes(branch) -> list[int]:
    """Numbers of outputs of the layers of a torso."""
    torso = branch.get("torso", branch)["params"]["torso"]
    return [leaf.shape[-1] for path, leaf in jax.tree_util.tree_leaves_with_path(torso) if path[-1].key == "bias"]


@pytest.mark.parametrize("name", ["nature_cnn", "q", "team_values"])
def test_critic_sizes_without_a_torso_are_rejected(name):
    with pytest.raises(UserError, match=r"network.critic_hidden_sizes \(5, 4\) has no effect"):
        NETWORKS[name](OWN_CRITIC)


def test_entity_heads_are_not_negative():
    with pytest.raises(UserError, match="entity_heads must not be negative: got -1"):
        NetworkConfig(torso="entities", entity_heads=-1)


def test_critic_sizes_are_validated():
    with pytest.raises(UserError, match="critic_hidden_sizes must be positive"):
        NetworkConfig(critic_hidden_sizes=())
    with pytest.raises(UserError, match=r"entity_heads must divide critic_hidden_sizes\[0\]"):
        NetworkConfig("entities", critic_hidden_sizes=(5,))


def test_log_std_by_state_is_an_output():
    config = NetworkConfig(hidden_sizes=(4,), log_std="state", initial_log_std=-0.5)
    net, x = make_actor_critic(config, CONTINUOUS), np.random.default_rng(3).normal(size=(6, 3)).astype(np.float32)
    first = jax.jit(net.policy)(jax.jit(net.init)(jax.random.key(0)), x)
    np.testing.assert_allclose(first[:, 2:], np.full((6, 2), -0.5), atol=0.05)
    params = jax.tree.map(lambda leaf: 9.0 * leaf, drawn(net.init))
    assert set(params) == {"actor", "critic"}
    layers = params["actor"]["params"]
    features = np.tanh(x @ layers["torso"]["Dense_0"]["kernel"] + layers["torso"]["Dense_0"]["bias"])
    outputs = features @ layers["head"]["Dense_0"]["kernel"] + layers["head"]["Dense_0"]["bias"]
    expected = np.concatenate([outputs[:, :2], np.clip(outputs[:, 2:] - 0.5, -5.0, 2.0)], axis=-1)
    assert (expected[:, 2:] == -5.0).any()
    assert (expected[:, 2:] == 2.0).any()
    np.testing.assert_allclose(jax.jit(net.policy)(params, x), expected, rtol=1e-3, atol=1e-4)


def test_log_std_by_state_of_structured_actions():
    action = {"arm": CONTINUOUS.action, "gear": DiscreteSpec(3), "leg": ArraySpec((1,), "float32")}
    spec = EnvSpec("structured", VECTOR.observation, action)
    net = make_actor_critic(NetworkConfig(hidden_sizes=(4,), log_std="state", initial_log_std=-1.5), spec)
    params = jax.tree.map(jnp.zeros_like, drawn(net.init))
    parameters = jax.jit(net.policy)(params, np.zeros((2, 3), np.float32))
    np.testing.assert_allclose(parameters, [[0.0, 0.0, -1.5, -1.5, 0.0, 0.0, 0.0, 0.0, -1.5]] * 2)


@pytest.mark.parametrize(
    ("high", "log_std", "is_narrow"), [(1.0, -4.0, True), (1e6, -0.5, False), (np.inf, -9.0, False)]
)
def test_a_deviation_below_a_hundredth_of_the_bounds_is_reported(high, log_std, is_narrow):
    spec = EnvSpec("test", ArraySpec((3,), "float32"), {"arm": ArraySpec((2,), "float32", -high, high)})
    warning = describe_narrow_policy(NetworkConfig(initial_log_std=log_std), spec)
    assert (warning is not None) == is_narrow
    if warning:
        assert "initial_log_std -4.0 is a deviation of 0.92% of the bounds of action['arm']" in warning


def test_initial_log_std_outside_of_its_range_is_rejected():
    with pytest.raises(UserError, match=r"initial_log_std must lie in \[-5.0, 2.0\] with log_std='state': got -6"):
        NetworkConfig(log_std="state", initial_log_std=-6.0)
