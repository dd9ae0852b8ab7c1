"""ReBRAC against its formulas written out: one gradient step from the same networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from agents.offline.rebrac import ReBRACConfig, build_rebrac, make_rebrac
from tests.support.offline_steps import (
    KEY,
    NETWORK,
    RATE,
    REPLAY,
    SPEC,
    adam,
    assert_close,
    mean,
    parts,
    start,
    two_step_sample,
)


def test_rebrac_step_is_that_of_its_equations():
    config = ReBRACConfig(
        REPLAY,
        discount=0.9,
        tau=0.25,
        policy_delay=1,
        target_noise=0.0,
        actor_learning_rate=RATE,
        critic_learning_rate=RATE,
        actor_penalty=0.3,
        critic_penalty=0.7,
    )
    agent, td3 = make_rebrac(config, SPEC, NETWORK), build_rebrac(config, SPEC, NETWORK)
    state, sample = start(agent), two_step_sample()
    observation, action, reward, going, following, weight = parts(sample)
    recorded = sample.trajectory.action[1] / 2.0
    follows = sample.trajectory.valid[1]
    np.testing.assert_array_equal(follows, [True, True, False, False, True, True])

    def goal(extra):
        chosen = td3.actor.action(extra.target_actor, following)
        value = jnp.min(td3.critics.values(extra.target_critic, following, chosen), axis=0)
        return reward + 0.9 * going * (value - 0.7 * follows * ((chosen - recorded) ** 2).sum(-1))

    def critic_loss(params, target):
        errors = td3.critics.values(params, observation, action) - target
        return 0.5 * sum(mean(errors[number] ** 2, weight) for number in range(2))

    def actor_loss(params, critic):
        chosen = td3.actor.action(params, observation)
        value = jnp.min(td3.critics.values(critic, observation, chosen), axis=0)
        scale = 1.0 / jax.lax.stop_gradient(mean(jnp.abs(value), weight))
        return 0.3 * mean(((chosen - action) ** 2).sum(-1), weight) - scale * mean(value, weight)

    @jax.jit
    def reference(actor, extra):
        critic = adam(extra.critic, jax.grad(critic_loss)(extra.critic, goal(extra)))
        actor = adam(actor, jax.grad(actor_loss)(actor, critic))
        follow = partial(jax.tree.map, lambda old, new: 0.75 * old + 0.25 * new)
        return actor, critic, follow(extra.target_actor, actor), follow(extra.target_critic, critic)

    after, _, _ = jax.jit(agent.update)(state, sample, KEY)
    actual = (after.params["actor"], after.extra.critic, after.extra.target_actor, after.extra.target_critic)
    assert_close(actual, reference(state.params["actor"], state.extra))


def test_rebrac_normalizes_the_layers_of_its_critics_only():
    def num_leaves(is_normalized):
        td3 = build_rebrac(ReBRACConfig(REPLAY, critic_layer_norm=is_normalized), SPEC, NETWORK)
        return [len(jax.tree.leaves(one.init(KEY))) for one in (td3.actor, td3.critics)]

    (actor, critics), (same_actor, plain) = num_leaves(True), num_leaves(False)
    assert actor == same_actor
    assert critics == plain + 2  # scale and bias of one layer
