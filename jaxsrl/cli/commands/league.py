"""`jaxsrl league`."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.cli.unused_options import validate_unused
from jaxsrl.terminal.progress import show_line
from jaxsrl.terminal.tables import print_tables
from jaxsrl.tune.runs_on import RunsOn


@dataclasses.dataclass(frozen=True)
class TrainLeague:
    """Train a league: main agents, exploiters of them, and exploiters of all policies so far; or fictitious co-play.

    Each round of a player is an ordinary run, whose policy stays in the league. The same command continues a stopped one.

    Attributes:
        experiment: name of one in experiments/, here or of the package, or the path of a Python file.
        rule: "league"; or "fcp": main agents play themselves, then one best response is trained against all their policies.
        rounds: number of rounds; a complete league can get more.
        env_steps: Env steps of each run.
        games: Games of each pair of policies, half from each side.
        main_agents: players that train against themselves, all others, and policies that beat them.
        main_exploiters: players that train against the newest main agents, from the second round.
        league_exploiters: players that train against all policies, from the second round.
        slots: opponents that act at the same time in a run.
        at_once: runs at the same time, each on cores of its own (on nodes: on as many reserved ones).
        runs_on: "here" is this machine; "auto" is the Ray cluster that is running; "local" starts a small one on this machine.
        directory: Directory of the runs; by default runs/league_EXPERIMENT.
        seed: Seed of games and choices; run n has seed + n.
        json: print one JSON object instead of a table.
        flags: Flags of the experiment, for all runs.
    """

    experiment: tyro.conf.Positional[str]
    rule: Literal["league", "fcp"] = "league"
    rounds: int = 4
    env_steps: int = 100_000
    games: int = 100
    main_agents: int = 1
    main_exploiters: int = 1
    league_exploiters: int = 1
    slots: int = 4
    at_once: int = 1
    runs_on: RunsOn = "here"
    directory: Path | None = None
    seed: int = 0
    json: bool = False
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Trains the rounds that are missing, and prints all policies, best first."""
        from jaxsrl.tune.league import League, LeagueConfig
        from jaxsrl.tune.managed_runs import OWNED_IN_ROUNDS, hold, validate_flags, validate_opponents
        from jaxsrl.tune.matchmaking import LARGEST_SELF_SHARE
        from jaxsrl.tune.node_runs import connected_nodes, train_on

        if self.rule == "fcp":
            validate_unused(self, ("main_exploiters", "league_exploiters"), "--rule fcp trains no exploiters")
        path = find_experiment(self.experiment)
        names = {field.name for field in dataclasses.fields(LeagueConfig)} - {"experiment"}
        config = LeagueConfig(str(path), **{name: getattr(self, name) for name in names})
        validate_flags(OWNED_IN_ROUNDS, self.flags)
        if self.rounds > 1:
            # In fictitious co-play only the best response meets others, and it never plays itself.
            validate_opponents(path, self.flags, self.slots, LARGEST_SELF_SHARE if self.rule == "league" else 0.0)

        directory = self.directory or Path("runs") / f"league_{path.stem}"
        play = make_play(path, self.flags)
        with hold(directory), connected_nodes(self.runs_on, directory, self.at_once, show_line) as nodes:
            train = train_on(nodes, self.at_once, show_line)
            league = League(directory, config, play, show_line, train)
            status = league.run()
        state = league.state
        rows = [
            {"policy": policy["name"], "rating": rating, "standard_error": error, "continues": policy["source"]}
            for policy, rating, error in zip(state["policies"], state["ratings"], state["errors"], strict=True)
        ]
        rows.sort(key=lambda row: -row["rating"])
        print_tables({"policies": rows}, self.json, f"round {state['rounds']} of {self.rounds}")
        return status


def make_play(experiment: Path, flags: Sequence[str]) -> Callable[..., tuple[Any, Any]]:
    """Returns the function that plays the games between runs of an experiment, in its environment.

    It maps runs, pairs of their numbers, games of each pair and seed to points per game and mean returns, [P, P] of i against j.
    """
    from agents.api import Mode
    from jaxsrl.evaluation.arena import ArenaConfig, load_contestants, play_arena
    from jaxsrl.experiment import load_experiment

    env = load_experiment(experiment, flags).env

    def play(runs: Sequence[Path], pairs: Sequence[tuple[int, int]], games: int, seed: int) -> tuple[Any, Any]:
        contestants = load_contestants([str(run) for run in runs], env=env)
        payoffs = play_arena(contestants, ArenaConfig(games, seed, Mode.SAMPLE), lambda line: None, pairs)
        return payoffs.share, payoffs.returns

    return play
