"""Decision Transformer against its formulas written out, and acting against the outputs of whole windows."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode, ReplayConfig, Sample, Trajectory
from agents.networks.config import NetworkConfig
from agents.networks.decision_transformer import Sequence, _Layer
from agents.offline.decision_transformer import (
    DecisionTransformerConfig,
    build_decision_transformer,
    make_decision_transformer,
)
from agents.ops.optimizers import OptimizerConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from tests.support.offline_steps import KEY, RATE, adam, assert_close

K, N, D, H = 4, 5, 2, 6
SEEN = {"last_reward": ArraySpec((), "float32"), "observation": ArraySpec((3,), "float32")}
SPEC = EnvSpec("test", SEEN, ArraySpec((D,), "float32", -2.0, 2.0))
DISCRETE = EnvSpec("test", SEEN, DiscreteSpec(4))
NETWORK = NetworkConfig(hidden_sizes=(5,), activation="tanh")
CONFIG = DecisionTransformerConfig(
    ReplayConfig(batch_size=N),
    normalize_observations=False,
    target_return=3.0,
    context_length=K,
    num_layers=2,
    num_heads=2,
    embedding_size=H,
    dropout=0.0,
    max_episode_steps=7,
    learning_rate=RATE,
    optimizer=OptimizerConfig("adam", epsilon=1e-8, weight_decay=0.0, max_grad_norm=None),
)


def window_of(spec, seed=1):
    """Row 1 ends after two steps, row 2 before the last; row 3 has no recorded end."""
    rng = np.random.default_rng(seed)
    terminated, valid = np.zeros((K, N), bool), np.ones((K, N), bool)
    terminated[1, 1] = terminated[2, 2] = True
    valid[2, 1] = valid[3, 2] = False
    is_first = np.concatenate([np.zeros((1, N), bool), ~valid])
    is_first[0, 0] = True
    step = rng.integers(1, 4, (K, N)).astype(np.int32) + np.arange(K, dtype=np.int32)[:, None]
    step[3, 1], step[0, 0] = 0, 0
    return_to_go = rng.normal(size=(K, N)).astype(np.float32)
    return_to_go[:, 3] = np.nan
    is_discrete = isinstance(spec.action, DiscreteSpec)
    make: Any = Trajectory
    trajectory = make(
        observation={
            "last_reward": rng.normal(size=(K + 1, N)).astype(np.float32),
            "observation": rng.normal(size=(K + 1, N, 3)).astype(np.float32),
        },
        is_first=is_first,
        action=rng.integers(0, 4, (K, N)).astype(np.int32)
        if is_discrete
        else rng.uniform(-2, 2, (K, N, D)).astype(np.float32),
        reward=rng.normal(size=(K, N)).astype(np.float32),
        terminated=terminated,
        truncated=np.zeros((K, N), bool),
        valid=valid,
        policy_version=np.zeros((K, N), np.int32),
        extras={"return_to_go": return_to_go, "episode_step": step},
    )
    return Sample(jax.tree.map(jnp.asarray, trajectory), jnp.full(N, 0.1), jnp.int32(10))


def started(spec, config=CONFIG):
    """Agent and state with weights that are not small, and returns of at most 2 so far."""
    agent = make_decision_transformer(config, spec, NETWORK)
    state, rng = agent.init(jax.random.key(0)), np.random.default_rng(5)
    shaken = jax.tree.map(
        lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), state.params["network"]
    )
    return agent, dataclasses.replace(
        state, params={**state.params, "network": shaken, "return_scale": jnp.float32(2.0)}
    )


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def norm(p, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def attend(p, x, seen):
    """Multi-head attention of tokens [M, H]; `seen` [M, M]."""
    q, k, v = (jnp.einsum("mh,hnd->nmd", x, p[n]["kernel"]) + p[n]["bias"][:, None] for n in ("query", "key", "value"))
    scores = jnp.where(seen, q @ jnp.swapaxes(k, 1, 2) / np.sqrt(q.shape[-1]), -1e30)
    mixed = jax.nn.softmax(scores) @ v
    return jnp.einsum("nmd,ndh->mh", mixed, p["out"]["kernel"]) + p["out"]["bias"]


def outputs_by_hand(network, observation, action, return_to_go, step, scale=2.0):
    """Outputs [L, A] of one row's steps of one episode, from the tokens of the paper's figure 1."""
    embedding, p = network["observation"]["params"], network["transformer"]["params"]
    first = embedding["torso"]["input"]
    hidden = jnp.tanh(observation @ first["kernel/observation"] + first["bias"])
    time = p["time"]["embedding"][jnp.minimum(step, 6)]
    rows = []
    for t in range(len(step)):
        rows.append(dense(p["return_to_go"], return_to_go[t][None] / scale) + time[t])
        rows.append(dense(embedding["token"]["Dense_0"], hidden[t]) + time[t])
        rows.append(dense(p["action"], action[t]) + time[t])
    x = norm(p["input_norm"], jnp.stack(rows))
    seen = np.tril(np.ones((len(rows), len(rows)), bool))
    for number in range(2):
        layer = p[f"layer_{number}"]
        x = x + attend(layer["attention"], norm(layer["attention_norm"], x), seen)
        wide = jnp.maximum(dense(layer["wide"], norm(layer["dense_norm"], x)), 0.0)
        x = x + dense(layer["narrow"], wide)
    return dense(p["output"], norm(p["output_norm"], x))[1::3]


# Row, first step and step after the last of each stretch of one episode that counts.
STRETCHES = [(0, 0, 4), (1, 0, 2), (1, 3, 4), (2, 0, 3), (4, 0, 4)]


@pytest.mark.parametrize("spec", [SPEC, DISCRETE], ids=["continuous", "discrete"])
@pytest.mark.parametrize("largest", [1.0, 5.0])
def test_a_step_is_that_of_its_equations(spec, largest):
    """Returns are divided by the largest one so far: 2 before this sample, whose largest return-to-go is `largest`."""
    agent, state = started(spec)
    sample = window_of(spec)
    to_go = sample.trajectory.extras["return_to_go"]
    to_go = to_go / jnp.nanmax(jnp.abs(to_go[~np.isnan(to_go) & sample.trajectory.valid])) * -largest
    extras = {**sample.trajectory.extras, "return_to_go": to_go}
    window = dataclasses.replace(sample.trajectory, extras=extras)
    sample = dataclasses.replace(sample, trajectory=window)
    scale = max(largest, 2.0)
    encoded = jax.nn.one_hot(window.action, 4) if spec is DISCRETE else window.action / 2.0

    def loss(network):
        errors = []
        for row, begin, end in STRETCHES:
            at = (slice(begin, end), row)
            seen = window.observation["observation"][at]
            out = outputs_by_hand(network, seen, encoded[at], to_go[at], window.extras["episode_step"][at], scale)
            if spec is DISCRETE:
                errors += [-jax.nn.log_softmax(out[t])[window.action[at][t]] for t in range(end - begin)]
            else:
                errors += [((jnp.tanh(out[t]) - encoded[at][t]) ** 2).mean() for t in range(end - begin)]
        return sum(errors) / len(errors)

    after, metrics, priority = jax.jit(agent.update)(state, sample, KEY)
    value, gradient = jax.jit(jax.value_and_grad(loss))(state.params["network"])
    assert_close(metrics["loss/total"], value)
    # A gradient near 0 has either sign in Adam's first step, so embeddings of unused steps and biases of keys are left out.
    jax.tree.map(
        lambda new, expected, g: np.testing.assert_allclose(
            np.where(np.abs(g) > 1e-6, new, 0.0), np.where(np.abs(g) > 1e-6, expected, 0.0), rtol=1e-5, atol=1e-5
        ),
        after.params["network"],
        adam(state.params["network"], gradient),
        gradient,
    )
    assert priority[3] == 0.0
    first = window.extras["return_to_go"][0, 0], window.extras["return_to_go"][3, 1]
    np.testing.assert_allclose(after.params["best_return"], max(first))
    np.testing.assert_allclose(after.params["return_scale"], scale)


def test_acting_step_by_step_is_the_output_of_the_newest_steps():
    agent, state = started(SPEC)
    dt = build_decision_transformer(CONFIG, SPEC, NETWORK)
    rng, steps = np.random.default_rng(2), 7
    seen = rng.normal(size=(steps, 1, 3)).astype(np.float32)
    reward = rng.normal(size=(steps, 1)).astype(np.float32)
    context, actions, starts = agent.initial_agent_state(1), [], (0, 2)
    act = jax.jit(partial(agent.act, mode=Mode.GREEDY))
    for t in range(steps):
        observation = {"last_reward": jnp.asarray(reward[t]), "observation": jnp.asarray(seen[t])}
        action, extras, context = act(
            state.params, observation, context, jnp.array([t in starts]), jax.random.split(KEY, 1)
        )
        begin = max(start for start in starts if start <= t)
        # The reward before the first observation belongs to another episode.
        wanted = 3.0 - np.concatenate([[0.0], np.cumsum(reward[begin + 1 : t + 1, 0])])
        np.testing.assert_allclose(extras["return_to_go"], [wanted[-1]], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(extras["episode_step"], [t - begin])
        past = [np.asarray(a[0]) / 2.0 for a in actions[begin:t]] + [np.zeros(D, np.float32)]
        newest = slice(-K, None)
        expected = outputs_by_hand(
            state.params["network"],
            jnp.asarray(seen[begin : t + 1, 0][newest]),
            jnp.asarray(np.stack(past)[newest]),
            jnp.asarray(wanted[newest], jnp.float32),
            jnp.arange(t + 1 - begin)[newest],
        )
        np.testing.assert_allclose(action[0], 2.0 * jnp.tanh(expected[-1]), rtol=1e-4, atol=1e-5)
        actions.append(action)
    assert dt.config.context_length < steps - starts[-1]


def test_outputs_do_not_see_the_action_and_the_steps_after():
    _, state = started(SPEC)
    dt = build_decision_transformer(CONFIG, SPEC, NETWORK)
    rng = np.random.default_rng(3)

    def drawn(*shape):
        return jnp.asarray(rng.normal(size=shape).astype(np.float32))

    sequence = Sequence(drawn(1, K, H), drawn(1, K, D), drawn(1, K), jnp.arange(K)[None], jnp.ones((1, K, K), bool))
    before = dt.net.outputs(state.params["network"], sequence, None)
    other = sequence._replace(action=sequence.action.at[0, 2].add(1.0), observed=sequence.observed.at[0, 3].add(1.0))
    after = dt.net.outputs(state.params["network"], other, None)
    np.testing.assert_array_equal(before[0, :3], after[0, :3])
    assert not np.allclose(before[0, 3], after[0, 3])


def test_the_target_is_the_best_sampled_return_unless_it_is_set():
    agent, state = started(SPEC, dataclasses.replace(CONFIG, target_return=None))
    observation = {"last_reward": jnp.ones(1), "observation": jnp.ones((1, 3))}
    act = partial(
        agent.act, observation=observation, agent_state=agent.initial_agent_state(1), is_first=jnp.ones(1, bool)
    )
    keys = jax.random.split(KEY, 1)
    assert act(state.params, keys=keys, mode=Mode.GREEDY)[1]["return_to_go"] == 0.0
    best = {**state.params, "best_return": jnp.float32(-7.5)}
    assert act(best, keys=keys, mode=Mode.GREEDY)[1]["return_to_go"] == -7.5


def test_normalization_leaves_the_last_reward_in_its_units():
    config = dataclasses.replace(CONFIG, normalize_observations=True)
    agent, sample = make_decision_transformer(config, SPEC, NETWORK), window_of(SPEC)
    state, _, _ = jax.jit(agent.update)(agent.init(jax.random.key(0)), sample, KEY)
    plain = make_decision_transformer(CONFIG, SPEC, NETWORK)
    seen = sample.trajectory.observation["observation"]
    observation = {"last_reward": jnp.full(N, 1.25), "observation": seen[0]}
    context, keys = agent.initial_agent_state(N), jax.random.split(KEY, N)
    act = partial(agent.act, agent_state=context, is_first=jnp.zeros(N, bool), keys=keys, mode=Mode.GREEDY)
    action, extras, _ = act(state.params, observation)
    np.testing.assert_array_equal(extras["return_to_go"], -1.25)
    other, _, _ = plain.act(state.params["agent"], observation, context, jnp.zeros(N, bool), keys, Mode.GREEDY)
    assert not np.allclose(action, other, atol=1e-7)


def test_dropout_of_attention_differs_between_rows_and_heads():
    layer, x = _Layer(num_heads=2, dropout=0.5), jnp.ones((N, K, H))
    mask = jnp.ones((N, 1, K, K), bool)
    params = layer.init(KEY, x, mask, True)
    program = jax.make_jaxpr(lambda key: layer.apply(params, x, mask, False, rngs={"dropout": key}))(KEY)
    assert f"random_bits[bit_width=32 shape=({N}, 2, {K}, {K})]" in str(program)


def test_dropout_is_for_learning_alone():
    agent, state = started(SPEC, dataclasses.replace(CONFIG, dropout=0.5))
    sample = window_of(SPEC)
    update = jax.jit(agent.update)
    losses = {float(update(state, sample, jax.random.key(seed))[1]["loss/total"]) for seed in (0, 1)}
    assert len(losses) == 2


def test_what_does_not_fit_is_rejected():
    plain = EnvSpec("test", ArraySpec((3,), "float32"), DiscreteSpec(4))
    with pytest.raises(UserError, match="expected the item 'last_reward' in observations; use --env.last-reward"):
        make_decision_transformer(CONFIG, plain, NETWORK)
    unbounded = EnvSpec("test", SEEN, ArraySpec((2,), "float32"))
    with pytest.raises(UserError, match="expected finite bounds"):
        make_decision_transformer(CONFIG, unbounded, NETWORK)
    with pytest.raises(UserError, match="num_heads must divide embedding_size: got 3 and 128"):
        DecisionTransformerConfig(num_heads=3)
    with pytest.raises(UserError, match=r"dropout must lie in \[0, 1\)"):
        DecisionTransformerConfig(dropout=1.0)
