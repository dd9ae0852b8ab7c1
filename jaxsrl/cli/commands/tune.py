"""`jaxsrl tune`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.terminal.progress import show_line
from jaxsrl.tune.runs_on import RunsOn

if TYPE_CHECKING:
    from jaxsrl.tune.space import Space


@dataclasses.dataclass(frozen=True)
class Tune:
    """Search for good values of options. Each trial is an ordinary run. The same command continues a stopped sweep.

    Attributes:
        experiment: name of one in experiments/, here or of the package, or the path of a Python file.
        space: .toml, .yaml or .json file of ranges and choices: agent.learning_rate = {low = 1e-4, high = 1e-2, log = true}.
        trials: number of trials of the whole sweep.
        jobs: trials that run at the same time.
        runs_on: "here" is this machine; "auto" is the Ray cluster that is running; "local" starts a small one on this machine.
        pruner: rule that stops bad trials early.
        sampler: rule that chooses values: by the results so far ("tpe"), or at random.
        reports: returns that a trial reports to the pruner, at equal distances of env steps. With --eval.every it reports each
            evaluation, otherwise the mean return of recent training episodes.
        directory: Directory of the sweep, with its storage and the run directories of its trials; by default
            runs/tune_EXPERIMENT.
        seed: Seed of the sampler.
        json: print one JSON object instead of a table.
        flags: Flags of the experiment, for all trials.
    """

    experiment: tyro.conf.Positional[str]
    space: Path
    trials: int = 20
    jobs: int = 1
    runs_on: RunsOn = "here"
    pruner: Literal["asha", "hyperband", "median", "none"] = "asha"
    sampler: Literal["tpe", "random"] = "tpe"
    reports: int = 10
    directory: Path | None = None
    seed: int = 0
    json: bool = False
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Runs the trials that are missing, prints all, and writes the best configuration."""
        from jaxsrl.tune.managed_runs import OWNED_PLACE, hold, validate_flags, validate_single, validate_start
        from jaxsrl.tune.node_runs import connected_nodes
        from jaxsrl.tune.report import print_results, read_results, write_best
        from jaxsrl.tune.run_trials import run_trials
        from jaxsrl.tune.space import read_space
        from jaxsrl.tune.study import Sweep, import_optuna, save_sweep

        if self.trials < 1 or self.jobs < 1:
            raise UserError(f"--trials and --jobs must be at least 1: got {self.trials} and {self.jobs}")
        import_optuna()
        path, space = find_experiment(self.experiment), read_space(self.space)
        sweep = Sweep(str(path), space_to_json(space), self.flags, self.pruner, self.sampler, self.reports, self.seed)
        validate_flags(OWNED_PLACE, self.flags, space)
        made = sweep.make_experiment({name: entry.first for name, entry in space.items()})
        validate_single(made.run, "trial", space)
        if made.run.is_offline and not made.run.eval.every:
            raise UserError("trials without environments report the returns of evaluations: use --eval.every")
        validate_start(made)
        directory = self.directory or Path("runs") / f"tune_{path.stem}"

        with hold(directory), connected_nodes(self.runs_on, directory, self.jobs, show_line) as nodes:
            save_sweep(directory, sweep)
            status = run_trials(directory, sweep, self.trials, self.jobs, show_line, nodes.start if nodes else None)
            results = read_results(directory, sweep)
            best = write_best(directory, results)
        print_results(directory, results, self.json)
        if best is not None:
            show_line(f"best configuration: jaxsrl train {self.experiment} --config {best}")
        return status


def space_to_json(space: "Space") -> dict[str, dict[str, Any]]:
    """Returns ranges and choices as in a file of them."""
    from jaxsrl.tune.space import Choices

    return {
        name: {"choices": list(entry.values)}
        if isinstance(entry, Choices)
        else {key: value for key, value in dataclasses.asdict(entry).items() if value is not None}
        for name, entry in space.items()
    }
