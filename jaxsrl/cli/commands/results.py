"""`jaxsrl results`."""

import dataclasses
from pathlib import Path
from typing import Literal

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.unused_options import validate_unused


@dataclasses.dataclass(frozen=True)
class Results:
    """Record runs as data, draw the page of results, or train what is missing.

    Attributes:
        action: "draw" makes the page and its pictures from the records, "add" records finished runs, and "run" trains the runs
            of tasks.toml that have no record and records them.
        items: Items of "add": run directories; of "run": tasks or settings to train, all by default.
        directory: Directory of the records, tasks.toml and references.toml.
        page: page that "draw" writes; pictures go to pictures/results next to it.
        preset: Name of the runs' settings, for "add"; "" for that of the experiment.
        runs: Directory of run directories, for "run".
        hours: Time after which training saves and stops, for "run"; 0 for no limit. The same command resumes.
    """

    action: tyro.conf.Positional[Literal["draw", "add", "run"]] = "draw"
    items: tyro.conf.Positional[tuple[str, ...]] = ()
    directory: Path = Path("results")
    page: Path = Path("docs/results.md")
    preset: str = ""
    runs: Path = Path("runs/results")
    hours: float = 0.0

    def run(self) -> int:
        """Carries out the action; the exit status of "run" is 1 if a training run failed."""
        own = {"draw": ("page",), "add": ("preset",), "run": ("runs", "hours")}
        others = [name for action, names in own.items() if action != self.action for name in names]
        validate_unused(self, others, f"jaxsrl results {self.action} has no use for options of other actions")
        return {"draw": self._draw, "add": self._add, "run": self._train}[self.action]()

    def _draw(self) -> int:
        from jaxsrl.results.draw import draw_results

        if self.items:
            raise UserError(f"draw takes all results: got {' '.join(self.items)}; did you mean `jaxsrl results add`?")
        number = draw_results(self.directory, self.page)
        print(f"written to {self.page}: {number} results")  # noqa: T201
        return 0

    def _add(self) -> int:
        from jaxsrl.results.record import make_result, write_result

        if not self.items:
            raise UserError("expected at least one run directory: jaxsrl results add runs/ppo_cartpole_seed0")
        results = [make_result(Path(item), self.preset) for item in self.items]
        for result in results:
            print(f"written to {write_result(result, self.directory)}")  # noqa: T201
        return 0

    def _train(self) -> int:
        from jaxsrl.results.task_list import read_tasks
        from jaxsrl.results.train_missing import select_tasks, train_missing

        if self.hours < 0:
            raise UserError(f"--hours must not be negative: got {self.hours}")
        tasks = select_tasks(read_tasks(self.directory), self.items)
        return train_missing(tasks, self.directory, self.runs, self.hours, lambda line: print(line, flush=True))  # noqa: T201
