"""BCQ against its formulas written out, and the actions that it generates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode
from agents.offline.bcq import BCQConfig, build_bcq, make_bcq
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from tests.support.offline_steps import (
    DISCRETE,
    KEY,
    NETWORK,
    RATE,
    REPLAY,
    SPEC,
    D,
    N,
    adam,
    assert_close,
    mean,
    parts,
    sample_of,
    start,
)

CONFIG = BCQConfig(
    REPLAY,
    discount=0.9,
    tau=0.25,
    num_candidates=3,
    num_acting_candidates=7,
    perturbation_limit=0.2,
    pessimism=0.6,
    latent_weight=0.3,
    generator_hidden_sizes=(6,),
    actor_learning_rate=RATE,
    critic_learning_rate=RATE,
    generator_learning_rate=RATE,
)
LATENT = 2 * D


def started(config=CONFIG):
    agent = make_bcq(config, SPEC, NETWORK)
    return agent, build_bcq(config, SPEC, NETWORK), start(agent)


def test_a_step_is_that_of_its_equations():
    agent, bcq, state = started()
    sample = sample_of()
    observation, action, reward, going, following, weight = parts(sample)
    generator_key, target_key, actor_key = jax.random.split(KEY, 3)

    def generator_loss(params):
        centre, log_std = bcq.generator.encode(params, observation, action)
        std = jnp.exp(log_std)
        decoded = bcq.generator.decode(
            params, observation, centre + std * jax.random.normal(generator_key, (N, LATENT))
        )
        kl = -0.5 * (1 + jnp.log(std**2) - centre**2 - std**2)
        return mean(((decoded - action) ** 2).mean(-1), weight) + 0.3 * mean(kl.mean(-1), weight)

    def chosen(generator, actor, at, latent):
        unchanged = bcq.generator.decode(generator, at, jnp.clip(latent, -0.5, 0.5))
        return bcq.actor.perturbed(actor, at, unchanged)

    def goal(generator, extra):
        latents, rows = jax.random.normal(target_key, (3, N, LATENT)), []
        for latent in latents:
            values = bcq.critics.values(
                extra.target_critic, following, chosen(generator, extra.target_actor, following, latent)
            )
            rows.append(0.6 * jnp.minimum(*values) + 0.4 * jnp.maximum(*values))
        return reward + 0.9 * going * jnp.max(jnp.stack(rows), axis=0)

    def critic_loss(params, target):
        errors = bcq.critics.values(params, observation, action) - target
        return 0.5 * sum(mean(errors[number] ** 2, weight) for number in range(2))

    def actor_loss(params, critic, generator):
        latent = jax.random.normal(actor_key, (1, N, LATENT))[0]
        return -mean(bcq.critics.values(critic, observation, chosen(generator, params, observation, latent))[0], weight)

    @jax.jit
    def reference(params, extra):
        generator = adam(params["generator"], jax.grad(generator_loss)(params["generator"]))
        critic = adam(params["critic"], jax.grad(critic_loss)(params["critic"], goal(generator, extra)))
        actor = adam(params["actor"], jax.grad(actor_loss)(params["actor"], critic, generator))
        targets = jax.tree.map(
            lambda old, new: 0.75 * old + 0.25 * new, (extra.target_critic, extra.target_actor), (critic, actor)
        )
        return {"generator": generator, "critic": critic, "actor": actor}, *targets

    after, _, _ = jax.jit(agent.update)(state, sample, KEY)
    actual = (after.params, after.extra.target_critic, after.extra.target_actor)
    assert_close(actual, reference(state.params, state.extra))


def test_acting_takes_the_best_of_the_generated_actions():
    agent, bcq, state = started()
    observation, keys = sample_of().trajectory.observation[0], jax.random.split(KEY, N)
    actions, _, _ = agent.act(state.params, observation, (), jnp.zeros(N, bool), keys, Mode.GREEDY)
    for row in range(N):
        repeated = jnp.tile(observation[row], (7, 1))
        latent = jnp.clip(jax.random.normal(keys[row], (7, LATENT)), -0.5, 0.5)
        candidates = bcq.actor.perturbed(
            state.params["actor"], repeated, bcq.generator.decode(state.params["generator"], repeated, latent)
        )
        values = bcq.critics.values(state.params["critic"], repeated, candidates)[0]
        np.testing.assert_allclose(actions[row], 2.0 * candidates[jnp.argmax(values)], atol=1e-5)


def test_changes_of_actions_are_limited():
    _, bcq, state = started()
    observation = sample_of().trajectory.observation[0]
    huge = jax.tree.map(lambda leaf: 100.0 * leaf, state.params["actor"])
    before = jnp.linspace(-1.0, 1.0, N * D).reshape(N, D)
    after = bcq.actor.perturbed(huge, observation, before)
    assert 0.19 < np.abs(after - before).max() <= 0.2 + 1e-6
    assert np.abs(after).max() <= 1.0


def test_generated_actions_approach_recorded_ones():
    config = dataclasses.replace(CONFIG, perturbation_limit=0.0, generator_learning_rate=0.02)
    agent = make_bcq(config, SPEC, NETWORK)
    state, sample = agent.init(jax.random.key(0)), sample_of()
    update = jax.jit(agent.update)
    for step in range(600):
        state, metrics, _ = update(state, sample, jax.random.fold_in(KEY, step))
    observation, action, _, _, _, _ = parts(sample)
    acted, _, _ = agent.act(state.params, observation, (), jnp.zeros(N, bool), jax.random.split(KEY, N), Mode.SAMPLE)
    spread = float(jnp.mean(jnp.square(action[:-1])))
    assert float(metrics["policy/distance"]) < 0.3 * spread
    assert float(jnp.mean(jnp.square(acted[:-1] / 2.0 - action[:-1]))) < 0.5 * spread


def test_what_does_not_fit_is_rejected():
    with pytest.raises(UserError, match="expected continuous actions"):
        make_bcq(CONFIG, DISCRETE, NETWORK)
    with pytest.raises(UserError, match="hidden_sizes must be positive"):
        make_bcq(dataclasses.replace(CONFIG, generator_hidden_sizes=()), SPEC, NETWORK)
    with pytest.raises(UserError, match="pessimism must lie in"):
        BCQConfig(pessimism=2.0)
    hidden = EnvSpec(
        "test",
        {"seen": ArraySpec((3,), "float32"), "state": ArraySpec((3,), "float32")},
        SPEC.action,
        critic_only=("state",),
    )
    with pytest.raises(UserError, match="BCQ acts by the values of its critics"):
        make_bcq(CONFIG, hidden, NETWORK)
