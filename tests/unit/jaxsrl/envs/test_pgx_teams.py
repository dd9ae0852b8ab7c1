"""Games of pgx as environments of two agents, who act at every step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.alphazero import AlphaZeroConfig, make_alphazero
from agents.dqn import DQNConfig, make_dqn
from agents.muzero import MuZeroConfig, make_muzero
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.errors import UserError
from jaxsrl.envs.pgx import make_pgx
from jaxsrl.envs.protocol import validate_env

pytest.importorskip("pgx")
BET, PASS = 0, 1
# Actions from the first one, and what the holder of the higher card wins, or the agent who did not pass.
SHOWDOWNS = {(PASS, PASS): 1.0, (BET, BET): 2.0, (PASS, BET, BET): 2.0}
FOLDS = {(BET, PASS): 0, (PASS, BET, PASS): 1}  # the winner


@pytest.fixture(scope="module")
def kuhn():
    env = make_pgx("kuhn_poker", {"two_agents": True})
    return env, jax.jit(env.reset), jax.jit(env.step)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("line", [*SHOWDOWNS, *FOLDS])
def test_payoffs_of_kuhn_poker_are_those_of_its_rules(kuhn, line, seed):
    _, reset, step = kuhn
    state, observation = reset(jax.random.key(seed))
    cards, reward = np.argmax(observation["board"][:, :3], axis=1), np.zeros(2)
    for turn, move in enumerate(line):
        mover = turn % 2
        assert observation["action_mask"][mover].tolist() == [True, True]
        assert observation["action_mask"][1 - mover].tolist() == [True, False]
        assert np.argmax(observation["board"][:, :3], axis=1).tolist() == cards.tolist()
        action = jnp.zeros(2, jnp.int32).at[mover].set(move)
        result = step(state, action, jax.random.key(0))
        state, observation, reward = result.state, result.observation, result.reward
        assert bool(result.terminated) == (turn == len(line) - 1)
    winner, amount = (FOLDS[line], 1.0) if line in FOLDS else (int(np.argmax(cards)), SHOWDOWNS[line])
    expected = np.where(np.arange(2) == winner, amount, -amount)
    np.testing.assert_array_equal(reward, expected)
    np.testing.assert_array_equal(observation["seat"], [[0.0], [1.0]])


def test_the_action_of_the_waiting_agent_is_ignored(kuhn):
    _, reset, step = kuhn
    state, _ = reset(jax.random.key(3))
    results = [step(state, jnp.array([PASS, waiting]), jax.random.key(0)) for waiting in (0, 1)]
    same = jax.tree.map(lambda one, other: np.array_equal(one, other), *(result.observation for result in results))
    assert all(jax.tree.leaves(same))


@pytest.mark.parametrize("game", ["tic_tac_toe", "connect_four", "leduc_holdem"])
def test_each_agent_sees_the_board_in_its_own_view(game):
    env = make_pgx(game, {"two_agents": True})
    spec = validate_env(env)
    assert [agent.name for agent in spec.agents] == ["first", "second"]
    state, observation = env.reset(jax.random.key(1))
    for turn in range(3):
        mover = turn % 2
        np.testing.assert_array_equal(observation["board"][mover], state["game"].observation)
        if game != "leduc_holdem":  # two planes: own stones and the other's
            np.testing.assert_array_equal(observation["board"][1 - mover], observation["board"][mover][..., ::-1])
        np.testing.assert_array_equal(observation["action_mask"][mover], state["game"].legal_action_mask)
        legal = int(np.flatnonzero(observation["action_mask"][mover])[turn % 2])
        result = env.step(state, jnp.zeros(2, jnp.int32).at[mover].set(legal), jax.random.key(turn))
        state, observation = result.state, result.observation
        if result.terminated:
            break


@pytest.mark.parametrize(
    ("game", "arguments", "message"),
    [
        ("2048", {"two_agents": True}, "needs a game of two players"),
        ("kuhn_poker", {"two_agents": 1, "with_state": True}, "expected one of two_agents and with_state"),
        ("kuhn_poker", {"agents": 2}, "expected one of two_agents and with_state"),
    ],
)
def test_games_without_two_agents_are_rejected(game, arguments, message):
    with pytest.raises(UserError, match=message):
        make_pgx(game, arguments)


@pytest.mark.parametrize(
    ("game", "advice"),
    [
        ("tic_tac_toe", "use --env.kwargs.two_agents true, or AlphaZero if both see"),
        ("backgammon", "use --env.kwargs.two_agents true"),
        ("sparrow_mahjong", "3 players move in turn .* use a game of at most two players"),
    ],
)
def test_rows_of_several_players_are_for_alphazero_alone(game, advice):
    spec = make_pgx(game, {}).spec()
    for make, config in ((make_ppo, PPOConfig()), (make_dqn, DQNConfig()), (make_muzero, MuZeroConfig())):
        with pytest.raises(UserError, match=advice):
            make(config, spec, NetworkConfig())
    assert make_pgx("2048", {}).spec().players == 1
    both = make_pgx("tic_tac_toe", {"two_agents": True}).spec()
    assert make_ppo(PPOConfig(), both, NetworkConfig()).name == "ppo"
    assert make_alphazero(AlphaZeroConfig(), make_pgx("tic_tac_toe", {"with_state": True}).spec(), NetworkConfig())
