"""`jaxsrl psro`."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import tyro

from jaxsrl.cli.commands.league import make_play
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.terminal.progress import show_line
from jaxsrl.terminal.tables import print_tables
from jaxsrl.tune.runs_on import RunsOn


@dataclasses.dataclass(frozen=True)
class TrainPSRO:
    """Train policies of a symmetric game one after another, each against a mixture of those before it.

    The mixture solves the game between the policies. Each policy is an ordinary run. The same command continues a stopped one.

    Attributes:
        experiment: name of one in experiments/, here or of the package, or the path of a Python file.
        iterations: number of policies; a complete directory can get more.
        env_steps: Env steps of each run.
        games: Games of each pair of policies, half from each side.
        solver: "nash", "uniform" (fictitious self-play), "replicator_dynamics" or "regret_matching".
        slots: opponents that act at the same time in a run.
        runs_on: "here" is this machine; "auto" is the Ray cluster that is running; "local" starts a small one on this machine.
        directory: Directory of the runs; by default runs/psro_EXPERIMENT.
        seed: Seed of games and of the first run; each further run has the next one.
        json: print one JSON object instead of a table.
        flags: Flags of the experiment.
    """

    experiment: tyro.conf.Positional[str]
    iterations: int = 10
    env_steps: int = 100_000
    games: int = 1_000
    solver: str = "nash"
    slots: int = 4
    runs_on: RunsOn = "here"
    directory: Path | None = None
    seed: int = 0
    json: bool = False
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Trains the policies that are missing, and prints all with their weight in the newest mixture."""
        from jaxsrl.tune.managed_runs import OWNED, hold, validate_flags, validate_opponents
        from jaxsrl.tune.node_runs import connected_nodes, train_on
        from jaxsrl.tune.psro import PSRO, PSROConfig

        path = find_experiment(self.experiment)
        config = PSROConfig(
            str(path),
            self.iterations,
            self.env_steps,
            self.games,
            self.solver,  # pyright: ignore[reportArgumentType]
            self.slots,
            self.seed,
            self.flags,
        )
        validate_flags(OWNED, self.flags)
        if self.iterations > 1:
            validate_opponents(path, self.flags, self.slots)
        directory = self.directory or Path("runs") / f"psro_{path.stem}"
        play = _make_play_newest(path, self.flags)
        with hold(directory), connected_nodes(self.runs_on, directory, 1, show_line) as nodes:
            psro = PSRO(directory, config, play, show_line, train_on(nodes, 1, show_line))
            status = psro.run()
        mixture = psro.state["mixtures"][-1] if psro.state["mixtures"] else []
        values = psro.payoffs @ mixture if mixture else []
        rows = [
            {"policy": run.name, "weight": weight, "return_against_mixture": float(value)}
            for run, weight, value in zip(psro.runs(), mixture, values, strict=True)
        ]
        print_tables({"policies": rows}, self.json, f"{len(rows)} of {self.iterations} policies")
        return status


def _make_play_newest(experiment: Path, flags: Sequence[str]) -> Callable[[Sequence[Path], int, int], list[float]]:
    play = make_play(experiment, flags)

    def play_newest(runs: Sequence[Path], games: int, seed: int) -> list[float]:
        newest = len(runs) - 1
        _, returns = play(runs, [(newest, other) for other in range(newest)], games, seed)
        return (0.5 * (returns[newest, :newest] - returns[:newest, newest])).tolist()

    return play_newest
