"""AlphaZero's targets against a walk along each game, its model against the game, and moves of its search."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pgx")

from agents.alphazero import AlphaZeroConfig, build_alphazero, make_alphazero, model_step, value_targets
from agents.api import Mode, Trajectory
from agents.networks.config import NetworkConfig
from agents.search.gumbel import GumbelConfig
from agents.search.puct import PUCTConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.envs.pgx import PgxEnv, make_pgx, pgx_rules

ENV = PgxEnv("tic_tac_toe", '{"with_state": true}')
NETWORK = NetworkConfig(hidden_sizes=(8,))
CONFIG = AlphaZeroConfig(gumbel=GumbelConfig(8, value_scale=1.0))


def positions(moves):
    """Observations [1, ...] after moves from the first position, and the last step."""
    state, observation = ENV.reset(jax.random.key(0))
    step, play = None, jax.jit(ENV.step)
    for move in moves:
        step = play(state, jnp.int32(move), jax.random.key(0))
        state, observation = step.state, step.observation
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], observation), step


def test_rewards_are_those_of_the_player_who_moved():
    _, won = positions([0, 3, 1, 4, 2])  # the first player has the upper row
    assert (float(won.reward), bool(won.terminated)) == (1.0, True)
    _, drawn = positions([0, 1, 2, 4, 3, 5, 7, 6, 8])
    assert (float(drawn.reward), bool(drawn.terminated)) == (0.0, True)
    _, illegal = positions([0, 0])
    assert (float(illegal.reward), bool(illegal.terminated)) == (-1.0, True)


def test_the_discount_of_the_model_changes_the_player():
    alphazero = build_alphazero(CONFIG, ENV.spec(), NETWORK)
    params = alphazero.net.init(jax.random.key(0))
    before, _ = positions([0, 3, 1, 4])
    winning = model_step(alphazero, params, before, jnp.array([2]), jax.random.key(0))
    assert (float(winning.reward[0]), float(winning.discount[0])) == (1.0, 0.0)
    other = model_step(alphazero, params, before, jnp.array([8]), jax.random.key(0))
    assert (float(other.reward[0]), float(other.discount[0])) == (0.0, -1.0)


@pytest.mark.parametrize(
    "search",
    [{"search": "gumbel", "gumbel": GumbelConfig(64)}, {"search": "puct", "puct": PUCTConfig(64)}],
    ids=["gumbel", "puct"],
)
def test_search_wins_and_blocks_with_an_untrained_network(search):
    agent = make_alphazero(AlphaZeroConfig(**search), ENV.spec(), NETWORK)
    params, act = agent.init(jax.random.key(0)).params, jax.jit(agent.act, static_argnums=5)
    wins, blocks = positions([0, 3, 1, 4])[0], positions([0, 8, 1])[0]
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), wins, blocks)
    keys = jax.random.split(jax.random.key(1), 2)
    action, extras, _ = act(params, both, (), np.zeros(2, bool), keys, Mode.GREEDY)
    # Sequential halving spends most simulations on few moves, and may miss the block without a trained value.
    assert int(action[0]) == 2
    assert search == "gumbel" or int(action[1]) == 2
    assert (np.asarray(extras["search_policy"])[np.asarray(both["action_mask"]) == 0] < 1e-6).all()
    assert not np.asarray(extras["is_random"]).any()


def test_random_moves_are_legal_and_as_frequent_as_configured():
    agent = make_alphazero(dataclasses.replace(CONFIG, random_moves=0.3), ENV.spec(), NETWORK)
    params, rows = agent.init(jax.random.key(0)).params, 1000
    observation = jax.tree.map(lambda leaf: jnp.repeat(leaf, rows, axis=0), positions([0, 3, 1])[0])
    keys = jax.random.split(jax.random.key(1), rows)
    move, extras, _ = jax.jit(agent.act, static_argnums=5)(
        params, observation, (), np.zeros(rows, bool), keys, Mode.SAMPLE
    )
    is_random = np.asarray(extras["is_random"])
    assert 0.25 < is_random.mean() < 0.35
    counts = np.bincount(np.asarray(move)[is_random], minlength=9)
    assert (counts[[0, 1, 3]] == 0).all()
    assert counts[[2, 4, 5, 6, 7, 8]].min() > 25


def walk(window, row, t):
    """Outcome for the player who moves at step t, along the game."""
    last = len(window.reward) - 1
    if window.extras["is_random"][t, row]:
        return window.extras["root_value"][t, row]
    if window.terminated[t, row]:
        return window.reward[t, row]
    if t == last or window.truncated[t, row] or not window.valid[t + 1, row]:
        return window.extras["root_value"][t, row]
    return window.reward[t, row] - walk(window, row, t + 1)


def test_targets_equal_a_walk_along_each_game():
    random, length, rows = np.random.default_rng(0), 12, 300
    terminated, truncated = random.random((2, length, rows)) < 0.15
    truncated &= ~terminated
    valid = np.concatenate([random.random((1, rows)) < 0.8, ~(terminated | truncated)[:-1]])
    terminated, truncated = terminated & valid, truncated & valid
    window = Trajectory(
        observation=(),
        is_first=np.zeros((length + 1, rows), bool),
        action=(),
        reward=np.where(terminated, random.choice([-1.0, 0.0, 1.0], (length, rows)), 0.0).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        policy_version=np.zeros((length, rows), np.int32),
        extras={
            "root_value": random.normal(size=(length, rows)).astype(np.float32),
            "is_random": random.random((length, rows)) < 0.1,
        },
    )
    expected = [[walk(window, row, t) for row in range(rows)] for t in range(length)]
    np.testing.assert_allclose(np.where(valid, value_targets(window), 0), np.where(valid, expected, 0), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: make_alphazero(CONFIG, make_pgx("tic_tac_toe", {}).spec(), NETWORK), "with-state true"),
        (lambda: make_alphazero(CONFIG, EnvSpec("t", ArraySpec((2,), "float32"), DiscreteSpec(2)), NETWORK), "rules"),
        (lambda: make_alphazero(CONFIG, ENV.spec(), NetworkConfig(core="gru")), "network.core 'none'"),
        (
            lambda: make_alphazero(dataclasses.replace(CONFIG, game="agents.search:nothing"), ENV.spec(), NETWORK),
            "module:name",
        ),
        (
            lambda: make_alphazero(CONFIG, ENV.spec(), NetworkConfig(sde_period=4)),
            "sde_period 4 has no effect: AlphaZero",
        ),
        (lambda: AlphaZeroConfig(random_moves=2.0), "random_moves"),
        (lambda: GumbelConfig(value_scale=-1.0), "gumbel.value_scale must be at least 0"),
        (lambda: PUCTConfig(dirichlet_alpha=0.0), "puct.dirichlet_alpha must be positive"),
        (lambda: pgx_rules("backgammon"), "deterministic game"),
        (lambda: make_pgx("tic_tac", {}), "did you mean tic_tac_toe"),
        (lambda: make_pgx("tic_tac_toe", {"size": 3}), "with_state"),
    ],
)
def test_what_does_not_fit_is_rejected(make, says):
    with pytest.raises(UserError, match=says):
        make()
