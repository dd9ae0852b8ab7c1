"""AlphaZero learns tic-tac-toe: it never loses to perfect play."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pgx")

from experiments import alphazero_tictactoe
from jaxsrl.envs.pgx import PgxEnv, pgx_rules
from jaxsrl.evaluation.games import Player, loaded_player, play_games
from jaxsrl.evaluation.load_agent import load_agent
from tests.support.tic_tac_toe import action_values, all_boards

PLACES = 3 ** np.arange(9)


def perfect_player():
    """Chooses among the best moves, all equally likely."""
    best = np.zeros((3**9, 9), bool)
    for board in all_boards():
        values = action_values(tuple(int(stone) for stone in board))
        good = [move for move, value in values.items() if value == max(values.values())]
        best[((board + 1) * PLACES).sum(), good] = True
    table = jnp.array(np.where(best, 0.0, -1e9), jnp.float32)

    def choose(params, observation, keys):
        stones = observation["board"].reshape(-1, 9, 2).astype(jnp.int32)
        number = ((stones[..., 0] - stones[..., 1] + 1) * PLACES).sum(-1)
        return jax.vmap(jax.random.categorical)(keys, table[number]).astype(jnp.int32)

    return Player(choose)


@pytest.mark.slow
def test_tic_tac_toe_is_never_lost_to_perfect_play(tmp_path):
    experiment = alphazero_tictactoe.EXPERIMENT
    run = dataclasses.replace(experiment.run, directory=str(tmp_path), name="run")
    dataclasses.replace(experiment, run=run).train(quiet=True)
    loaded = load_agent(tmp_path / "run")
    game = PgxEnv("tic_tac_toe", '{"with_state": true}'), pgx_rules("tic_tac_toe")
    for seat in play_games(*game, loaded_player(loaded), perfect_player(), games=200, seed=0):
        assert (seat.wins, seat.losses) == (0, 0)
