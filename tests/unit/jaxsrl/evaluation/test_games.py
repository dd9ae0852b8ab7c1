"""Games against opponents: results by seat, and opponents by name."""

from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pgx")

from agents.api import Agent, OnPolicy
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.envs.cpu_rows import JaxSource
from jaxsrl.envs.pgx import PgxEnv, pgx_rules
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.games import RANDOM, Player, game_of, loaded_player, make_opponent, play_games
from jaxsrl.evaluation.load_agent import LoadedAgent

ENV, PLAY = PgxEnv("tic_tac_toe", '{"with_state": true}'), pgx_rules("tic_tac_toe")


def first_free(params, observation, keys):
    """Takes the first free place."""
    return jnp.argmax(observation["action_mask"], axis=-1).astype(jnp.int32)


def last_free(params, observation, keys):
    """Takes the last free place."""
    mask = observation["action_mask"]
    return (mask.shape[-1] - 1 - jnp.argmax(mask[:, ::-1], axis=-1)).astype(jnp.int32)


def test_results_are_those_of_the_agent_in_each_seat():
    # 0 8 1 7 2: the upper row is first. 8 0 7 1 6: the lower row is first. Whoever begins wins.
    first, second = play_games(ENV, PLAY, Player(first_free), Player(last_free), games=5, seed=0)
    assert (first.seat, first.games, first.wins, first.draws, first.losses) == ("first", 3, 3, 0, 0)
    assert (second.seat, second.games, second.wins, second.draws, second.losses) == ("second", 2, 0, 0, 2)


def test_game_of_recommends_the_arena_only_for_several_agents():
    with pytest.raises(UserError, match="several agents, or a game of suite 'pgx' .*: got environment CartPole-v1$"):
        game_of(make_env(EnvConfig("CartPole-v1")))
    both = EnvConfig("tic_tac_toe", suite="pgx", kwargs='{"two_agents": true}')
    with pytest.raises(UserError, match="got environment tic_tac_toe; `jaxsrl arena` plays"):
        game_of(make_env(both))


def test_random_games_have_the_known_results():
    """Random play from the first position is won by the first player with probability 0.585, drawn with 0.127."""
    first, second = play_games(ENV, PLAY, RANDOM, RANDOM, games=4000, seed=0)
    np.testing.assert_allclose([first.wins, first.draws, first.losses], [1170, 254, 576], atol=80)
    np.testing.assert_allclose([second.losses, second.draws, second.wins], [1170, 254, 576], atol=80)


@pytest.mark.slow
def test_uct_never_loses_to_random_moves():
    # 500 simulations miss the only reply to a first move in a corner, the center, in 15 of 64 searches; plain UCT does in 11.
    uct = make_opponent("uct:1500", PLAY, None)
    for seat in play_games(ENV, PLAY, uct, RANDOM, games=40, seed=0):
        assert seat.losses == 0
        assert seat.wins >= 10


def test_opponents_are_made_by_name():
    assert make_opponent("random", PLAY, None) is RANDOM
    assert make_opponent("runs/other", PLAY, lambda path: (path, "loaded")) == ("runs/other", "loaded")
    for name in ("uct:", "uct:0", "uct:many"):
        with pytest.raises(UserError, match="uct:SIMULATIONS"):
            make_opponent(name, PLAY, None)
    with pytest.raises(UserError, match="at least 2"):
        play_games(ENV, PLAY, RANDOM, RANDOM, games=1, seed=0)


@pytest.mark.parametrize("remembers", [False, True])
def test_agents_with_a_memory_are_rejected(remembers):
    """Ape-X has a state that never changes."""

    def act(params, observation, agent_state, is_first, keys, mode):
        move = first_free(params, observation, keys)
        return move, {}, {"number": agent_state["number"] + 1} if remembers else {"number": agent_state["number"]}

    agent = Agent("a", None, lambda num_rows: {"number": jnp.zeros(num_rows)}, act, None, {}, OnPolicy())
    loaded = LoadedAgent(agent, (), JaxSource(partial(PgxEnv, "tic_tac_toe")), Path("run"), 1, None)
    if remembers:
        with pytest.raises(UserError, match="run: .* memory"):
            loaded_player(loaded)
        return
    first, _ = play_games(ENV, PLAY, loaded_player(loaded), Player(last_free), games=2, seed=0)
    assert first.wins == 1
