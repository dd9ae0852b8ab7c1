"""Rock-paper-scissors: self-play without a pool runs in a circle, and past selves of a pool are the equilibrium on average.

REINFORCE without memory, with the same settings in both. The whole run is on the device.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig
from agents.reinforce import REINFORCEConfig, make_reinforce
from agents.transforms.multi_policy import policy_spec
from agents.transforms.self_play import SelfPlayConfig, make_self_play
from jaxsrl.device_loop.collect import init_rows
from jaxsrl.device_loop.program import make_advance, make_run_keys
from jaxsrl.envs.rock_paper_scissors import RockPaperScissors

pytestmark = pytest.mark.slow

ROWS, ROUNDS, EVERY = 128, 10, 10
ENV = RockPaperScissors(ROUNDS)
CONFIG = REINFORCEConfig(
    learning_rate=0.02,
    discount=0.0,
    baseline=False,
    entropy_coef=0.15,
    optimizer=OptimizerConfig(max_grad_norm=None),
)
ALONE = make_reinforce(CONFIG, policy_spec(ENV.spec(), (0, 1)), NetworkConfig(hidden_sizes=(8,)))


@jax.jit
def choices(params):
    """[3] shares of the choices of a policy, from 4,096 samples."""
    keys = jax.random.split(jax.random.key(1), 4096)
    action, _, _ = ALONE.act(params, jnp.ones((4096, 1)), (), jnp.ones(4096, bool), keys, Mode.SAMPLE)
    return jnp.mean(jax.nn.one_hot(action, 3), axis=0)


def train(agent, learner, updates, seed):
    """The last state, and the learner's choices [updates / 10, 3] over the run."""
    init, act, update = jax.random.split(jax.random.key(seed), 3)
    keys, state = make_run_keys(seed, act, update, ROWS), jax.jit(agent.init)(init)
    rows, advance = init_rows(ENV, agent, keys.rows), jax.jit(make_advance(ENV, agent, ROUNDS + 1))
    found = []
    for _ in range(updates // EVERY):
        state, rows, *_ = advance(np.int32(EVERY), state, rows, keys)
        found.append(np.asarray(choices(learner(state.params))))
    return state, np.array(found)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_a_pool_each_choice_is_beaten_by_the_next(seed):
    _, share = train(ALONE, lambda params: params, 1600, seed)
    assert np.median(share.max(axis=1)) > 0.9  # nearly always one choice
    best = share.argmax(axis=1)
    changes = (best[1:] - best[:-1])[best[1:] != best[:-1]] % 3
    assert len(changes) >= 6
    assert set(changes) == {1}  # rock to paper to scissors to rock


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_past_selves_of_a_pool_are_the_equilibrium_on_average(seed):
    pool = SelfPlayConfig(slots=8, library_size=300, self_share=0.0, snapshot_every=10, reslot_every=1)
    agent = make_self_play(ALONE, ENV.spec(), pool, ROWS)
    state, _ = train(agent, lambda params: params["learner"], 3000, seed)
    mixture = np.asarray(jax.vmap(choices)(state.extra["library"].params)).mean(axis=0)
    np.testing.assert_allclose(mixture, 1 / 3, atol=0.05)
