"""Every board game that AlphaZero accepts: its rules are pgx's, and a run trains on it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.alphazero import AlphaZeroConfig
from agents.search.gumbel import GumbelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, RunConfig
from jaxsrl.envs.pgx import PERFECT_INFORMATION, make_pgx, pgx_rules

pgx = pytest.importorskip("pgx")
STEPS, MOVES = 4, 150
QUICK = "tic_tac_toe"
ENDING = {"tic_tac_toe", "connect_four", "othello", "hex", "animal_shogi"}  # of random moves, within MOVES


@pytest.mark.parametrize(
    "env_id", [pytest.param(game, marks=() if game == QUICK else pytest.mark.slow) for game in PERFECT_INFORMATION]
)
def test_rules_and_environment_equal_the_game(env_id):
    """Random games, of which the rules know only what a row of the replay buffer holds."""
    env, play, game = make_pgx(env_id, {"with_state": True}), jax.jit(pgx_rules(env_id)), pgx.make(env_id)
    step, reference, random = jax.jit(env.step), jax.jit(game.step), np.random.default_rng(0)
    state, observation = jax.jit(env.reset)(jax.random.key(0))
    ends = 0
    for number in range(MOVES):
        move = jnp.int32(random.choice(np.flatnonzero(observation["action_mask"])))
        stored = jax.tree.map(np.array, observation)
        played, simulated, expected = step(state, move, jax.random.key(1)), play(stored, move), reference(state, move)
        np.testing.assert_array_equal(played.reward, expected.rewards[state.current_player])
        np.testing.assert_array_equal(played.observation["board"], expected.observation)
        np.testing.assert_array_equal(played.observation["action_mask"], expected.legal_action_mask)
        assert float(expected.rewards.sum()) == 0.0  # values change sign from one player to the other
        assert bool(expected.terminated) or int(expected.current_player) != int(state.current_player)
        assert (bool(simulated.ended), float(simulated.reward)) == (bool(expected.terminated), float(played.reward))
        jax.tree.map(np.testing.assert_array_equal, played.observation, simulated.observation)
        state, observation = played.state, played.observation
        if bool(played.terminated):
            ends += 1
            state, observation = jax.jit(env.reset)(jax.random.key(number))
    assert ends or env_id not in ENDING


@pytest.mark.slow
@pytest.mark.parametrize("env_id", PERFECT_INFORMATION)
def test_a_run_trains(tmp_path, env_id):
    replay = ReplayConfig(capacity=64, batch_size=2, min_size=16, gradient_steps_per_env_step=0.25)
    experiment = Experiment(
        env=EnvConfig(env_id, suite="pgx", kwargs='{"with_state": true}'),
        network=NetworkConfig(hidden_sizes=(8,)),
        agent=AlphaZeroConfig(replay=replay, gumbel=GumbelConfig(2, value_scale=1.0), window=STEPS),
        run=RunConfig(plan="device_only", num_envs=4, rollout_length=STEPS, total_env_steps=64),
    )
    run = dataclasses.replace(experiment.run, directory=str(tmp_path), name="run", eval=EvalConfig(final_episodes=0))
    report = dataclasses.replace(experiment, run=run).train(quiet=True)
    assert report.num_updates == 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(report.state.params))
