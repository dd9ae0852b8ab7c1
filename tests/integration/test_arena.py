"""`jaxsrl arena`: payoffs of all pairs in board games and among agents, and what is rejected."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsrl.cli.main
from agents.a2c import A2CConfig
from agents.alphazero import AlphaZeroConfig
from agents.api import Agent, Mode, OnPolicy, ReplayConfig
from agents.networks.config import NetworkConfig
from agents.search.gumbel import GumbelConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.errors import UserError
from jaxsrl.evaluation import arena
from jaxsrl.evaluation.arena import ArenaConfig, Contestant, Payoffs, load_contestants, play_arena, rate
from jaxsrl.evaluation.games import evaluate_against
from jaxsrl.evaluation.load_agent import LoadedAgent, load_agent
from jaxsrl.experiment import Experiment
from jaxsrl.plots.draw_payoffs import draw_payoffs
from tests.support.run_configs import run_config
from tests.support.scripted_agents import Alike

BOARD = EnvConfig("tic_tac_toe", suite="pgx", kwargs='{"with_state": true}')
TWO_AGENTS = EnvConfig("tic_tac_toe", suite="pgx", kwargs='{"two_agents": true}')
ROCK_PAPER_SCISSORS = EnvConfig("pettingzoo/classic/rps_v2", suite="pettingzoo", kwargs='{"max_cycles": 3}')


def train(directory, name, env, seed, plan="serial"):
    settings = {"num_envs": 8, "rollout_length": 8, "total_env_steps": 64, "eval_final_episodes": 0, "seed": seed}
    config = run_config(name=name, directory=str(directory), plan=plan, **settings)
    search = AlphaZeroConfig(
        replay=ReplayConfig(capacity=64, batch_size=2, min_size=16), gumbel=GumbelConfig(2), window=8
    )
    Experiment(env, search if env is BOARD else A2CConfig(), NetworkConfig(hidden_sizes=(8,)), config).train(quiet=True)
    return str(Path(directory) / name)


@pytest.fixture(scope="module")
def board_runs(tmp_path_factory):
    pytest.importorskip("pgx")
    directory = tmp_path_factory.mktemp("runs")
    return [train(directory, f"run{seed}", BOARD, seed, "device_only") for seed in (0, 1)]


def play(paths, config):
    lines = []
    payoffs = play_arena(load_contestants(paths), config, lines.append)
    assert len(lines) == len(paths) * (len(paths) - 1) / 2
    return payoffs


def test_board_games_of_all_pairs(board_runs, tmp_path, capsys):
    first, second = board_runs
    paths = [first, second, "random"]
    payoffs = play(paths, ArenaConfig(games=20))
    games = payoffs.points + payoffs.points.T
    np.testing.assert_array_equal(games, 20.0 * (1 - np.eye(3)))
    np.testing.assert_array_equal(payoffs.returns, (payoffs.wins - payoffs.wins.T) / 20)
    for row, opponent in ((0, second), (1, "random")):
        seats = evaluate_against(load_agent(Path(paths[row])), opponent, 20, 0)
        assert payoffs.wins[row, row + 1] == sum(seat.wins for seat in seats)
    options = ["--games", "20", "--out", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png"), "--json"]
    jaxsrl.cli.main.main(["arena", *paths, *options])
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "a.json").read_text()) == payoffs.to_json()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_agent_acts_for_its_rows_as_among_all(tmp_path):
    pytest.importorskip("pgx")
    paths = [train(tmp_path, f"run{seed}", TWO_AGENTS, seed) for seed in (0, 1)]
    config = ArenaConfig(games=400, mode=Mode.SAMPLE)  # few games may end as greedy ones do
    own = load_contestants(paths)
    assert not any(each.loaded.acts_for_teams for each in own)
    teams = [Contestant(each.name, dataclasses.replace(each.loaded, acts_for_teams=True)) for each in own]
    results = [play_arena(contestants, config, lambda line: None) for contestants in (own, teams)]
    for one, other in zip(*map(dataclasses.astuple, results), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_both_policies_play_both_sides(tmp_path):
    pytest.importorskip("pettingzoo")
    paths = [train(tmp_path, f"run{seed}", ROCK_PAPER_SCISSORS, seed) for seed in (0, 1)]
    once, again = (play(paths, ArenaConfig(games=10)) for _ in range(2))
    assert dataclasses.astuple(once)[0] == tuple(paths)
    for one, other in zip(dataclasses.astuple(once)[1:], dataclasses.astuple(again)[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(once.returns, -once.returns.T)
    assert once.points[0, 1] + once.points[1, 0] == 10
    # A policy against its own copy, from both sides of the same games, wins as often as it loses.
    twin = play([paths[0], f"{paths[0]}/checkpoints/1"], ArenaConfig(games=10))
    assert twin.points[0, 1] == twin.points[1, 0] == 5


@pytest.mark.parametrize(
    ("sides", "returns", "expected"),
    [
        (((0, 1, 2), (3,)), (0.1, 0.1, 0.1, 0.1), 0.1),  # their rounded mean is 0.10000000000000002
        (((0, 1, 2), (3, 4, 5)), (0.1, 0.2, 0.3, 0.3, 0.2, 0.1), 0.2),  # in another order the sum is another one
    ],
)
def test_equal_returns_of_two_sides_are_a_draw(monkeypatch, sides, returns, expected):
    names = [f"agent_{number}" for number in range(len(returns))]
    source = SimpleNamespace(spec=lambda: SimpleNamespace(agents=[SimpleNamespace(name=name) for name in names]))
    by_agent = {name: (each,) for name, each in zip(names, returns, strict=True)}
    report = SimpleNamespace(returns_by_agent=by_agent, cut_episodes=2)
    monkeypatch.setattr(arena, "evaluate", lambda *args, **kwargs: report)
    means, num_cut = arena._returns_of_sides(None, None, source, sides, ArenaConfig(games=2), None)
    assert (means, num_cut) == ([(expected, expected)], 2)


def test_absent_agents_do_not_count(monkeypatch):
    names = ["red_0", "red_1", "blue_0"]
    source = SimpleNamespace(spec=lambda: SimpleNamespace(agents=[SimpleNamespace(name=name) for name in names]))
    nan = float("nan")
    by_agent = {"red_0": (1.0, nan), "red_1": (2.0, nan), "blue_0": (nan, 3.0)}
    report = SimpleNamespace(returns_by_agent=by_agent, returns=(1.5, 3.0), cut_episodes=0)
    monkeypatch.setattr(arena, "evaluate", lambda *args, **kwargs: report)
    means, _ = arena._returns_of_sides(None, None, source, ((0, 1), (2,)), ArenaConfig(games=4), None)
    assert means == [(1.5, 0.0), (0.0, 3.0)]


@pytest.mark.parametrize("acts_for_teams", [False, True])
def test_policies_with_a_memory_play_in_uneven_teams(acts_for_teams):
    source, lengths = ParallelSource(Alike), []

    def act(params, observation, agent_state, is_first, keys, mode):
        jax.debug.callback(lambda state: lengths.append(state.tolist()), agent_state)
        return agent_state % 2, {}, jnp.where(is_first, 0, agent_state) + 1

    agent = Agent("counts", None, lambda num_rows: jnp.zeros(num_rows, jnp.int32), act, None, {}, OnPolicy())
    loaded = LoadedAgent(agent, {}, source, Path(), 1, None, acts_for_teams=acts_for_teams)
    contestants = [Contestant(name, loaded) for name in ("one", "other")]
    payoffs = play_arena(contestants, ArenaConfig(games=2, first_side="[ab]"), lambda line: None)
    assert payoffs.wins[0, 1] == payoffs.wins[1, 0] == 1  # "c" is paid more
    jax.effects_barrier()
    assert {number for state in lengths for number in state} == set(range(5))  # steps before each of the five


def test_only_agents_with_the_same_functions_are_shared():
    experiments = [{"imitation": {"expert": expert}} for expert in ("", "", "runs/expert")]
    loaded = [
        SimpleNamespace(agent=f"agent {number}", metadata={"experiment": experiment})
        for number, experiment in enumerate(experiments)
    ]
    assert arena._shared_agents(loaded) == ["agent 0", "agent 0", "agent 2"]


def test_random_moves_win_draw_and_lose_a_third_each(tmp_path):
    run = train(tmp_path, "run", EnvConfig("RockPaperScissors-v1", "jax", '{"rounds": 1}'), 0, "device_only")
    payoffs = play([run, "random"], ArenaConfig(games=600))
    for count in (payoffs.wins[0, 1], payoffs.wins[1, 0], payoffs.draws[0, 1]):
        assert abs(count - 200) < 60  # five standard deviations


def test_the_best_is_first_and_a_beaten_one_has_no_nash_weight():
    wins = np.array([[0.0, 9.0, 10.0], [1.0, 0.0, 8.0], [0.0, 2.0, 0.0]])
    rows = rate(Payoffs(("a", "b", "c"), wins, np.zeros((3, 3)), np.zeros((3, 3))))
    assert [row["policy"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["nash_weight"] == pytest.approx(1.0, abs=1e-6)
    assert rows[1]["points_per_game"] == 0.45


def test_a_plot_of_another_type_is_rejected_before_the_games(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        jaxsrl.cli.main.main(["arena", "no run", "random", "--plot", str(tmp_path / "a.gif")])
    assert ended.value.code == 2
    assert "a plot is written as .png, .svg or .pdf" in capsys.readouterr().err
    with pytest.raises(UserError, match="a plot is written as"):
        draw_payoffs(["a", "b"], np.full((2, 2), 0.5), tmp_path / "a.gif")


def test_what_cannot_play_is_rejected(board_runs, tmp_path, capsys):
    for paths, message in (
        (board_runs[:1], "at least two policies"),
        ([board_runs[0]] * 2, "each once"),
        (["random", str(tmp_path)], "no run directory|no checkpoint"),
    ):
        with pytest.raises(UserError, match=message):
            load_contestants(paths)
    with pytest.raises(UserError, match=r"two_agents: expected the agents and observations of .*run0"):
        load_contestants([board_runs[0], train(tmp_path, "two_agents", TWO_AGENTS, 0, "device_only")])
    with pytest.raises(UserError, match="an even number, got 5"):
        ArenaConfig(games=5)
    with pytest.raises(UserError, match="--first-side 'red_\\*' .*: omit it"):
        play(board_runs, ArenaConfig(games=2, first_side="red_*"))
    for out in (tmp_path / "none" / "a.json", tmp_path):
        with pytest.raises(SystemExit) as ended:
            jaxsrl.cli.main.main(["arena", *board_runs, "--games", "2", "--out", str(out)])
        assert ended.value.code == 2
        assert "won" not in capsys.readouterr().err  # before the games
