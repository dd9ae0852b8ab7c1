"""`jaxsrl plot`."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.unused_options import validate_unused
from jaxsrl.terminal.progress import show_line


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draw and compare runs: mean and 95 % bootstrap interval over seeds, and scores over environments.

    Attributes:
        runs: run directories, and directories of runs.
        x: env steps, seconds of training, or emulator frames.
        metric: a name of docs/reference/metrics.md.
        out: image to write: .png, .svg or .pdf.
        group_by: fields of the configuration, for example agent.learning_rate; runs with equal values form one group. Also agent,
            plan, seed, and run for each run by itself. By default, runs that differ only in the seed form one group.
        score: score of a run when several environments are compared: the metric's last or best value, or its evaluation.
        normalize: JSON file with the values that become 0 and 1 of each environment, {"CartPole-v1": [0, 500]}; by default those of
            the worst and the best run.
        sweep: directory of a `jaxsrl tune`, drawn instead of runs: its trials, and the importance of its options.
        population: directory of a `jaxsrl population`, `psro` or `league`, drawn instead of runs: family tree, options, payoffs,
            ratings.
        json: print one JSON object instead of tables.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    x: Literal["steps", "time", "frames"] = "steps"
    metric: str = "episode/return_mean"
    out: Path = Path("plot.png")
    group_by: tuple[str, ...] = ()
    score: Literal["last", "best", "evaluation"] = "last"
    normalize: Path | None = None
    sweep: Path | None = None
    population: Path | None = None
    json: bool = False

    def run(self) -> int:
        """Draws the comparison and prints it."""
        if sum((bool(self.runs), self.sweep is not None, self.population is not None)) > 1:
            raise UserError("a picture is of runs, of one --sweep, or of one --population: give one of them")
        of_runs = ("x", "metric", "group_by", "score", "normalize")
        if self.population is not None:
            validate_unused(self, of_runs, "--population draws what its manager has recorded")
            return self._draw_population(self.population)
        if self.sweep is not None:
            validate_unused(self, of_runs, "--sweep draws the results of its trials")
            return self._draw_sweep(self.sweep)
        if not self.runs:
            raise UserError("expected at least one run directory, or directory of runs: jaxsrl plot runs")
        from jaxsrl.plots.compare_runs import compare_runs, draw_comparison
        from jaxsrl.plots.scores import read_bounds
        from jaxsrl.plots.style import validate_out

        validate_out(self.out)
        bounds = None if self.normalize is None else read_bounds(self.normalize)
        comparison = compare_runs(list(self.runs), self.x, self.metric, self.group_by, self.score, bounds)
        for warning in comparison.warnings:
            show_line(f"warning: {warning}")
        draw_comparison(comparison, self.out)
        if not self.json:
            from jaxsrl.plots.table import print_comparison

            print_comparison(comparison)
        return self._print_end(comparison.to_json())

    def _draw_sweep(self, directory: Path) -> int:
        from jaxsrl.config.files import flag_name
        from jaxsrl.tune.draw import draw_sweep

        importance = {flag_name(name): value for name, value in draw_sweep(directory, self.out).items()}
        if not self.json:
            for name, value in importance.items():
                print(f"{value:6.1%}  {name}")  # noqa: T201
        return self._print_end({"importance": importance})

    def _draw_population(self, directory: Path) -> int:
        from jaxsrl.plots.draw_population import draw_population

        draw_population(directory, self.out)
        return self._print_end({})

    def _print_end(self, result: dict[str, Any]) -> int:
        """Prints the result as JSON, or only where the picture is; returns the exit status."""
        print(json.dumps({**result, "out": str(self.out)}) if self.json else f"written to {self.out}")  # noqa: T201
        return 0
