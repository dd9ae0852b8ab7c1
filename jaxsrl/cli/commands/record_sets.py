"""`jaxsrl record-sets`."""

import dataclasses
from pathlib import Path

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.terminal.progress import show_line
from jaxsrl.terminal.tables import print_tables

_OWNED = {
    "run.directory": "use --out",
    "run.name": "use --out",
    "run.record": "use --out",
    "run.eval.every": "use --evaluations",
    "run.checkpoint.keep_every": "use --evaluations",
}
"""Options that the command sets, and what to do in place of giving them."""


@dataclasses.dataclass(frozen=True)
class RecordSets:
    """Train an experiment, and write the standard datasets of its task: random, medium, expert, replay, medium-expert.

    The same command continues what was stopped. Other flags are those of the experiment.

    Attributes:
        experiment: name of one in experiments/, here or of the package, or the path of a Python file.
        out: directory of the sets, of the run, and of the dataset of all its steps.
        env_steps: least number of env steps of each recorded set; its last episodes are recorded to their ends.
        evaluations: number of versions of the policy to evaluate, at equal distances of env steps.
        stochastic: sample the actions of medium and expert instead of taking the most likely ones.
        seed: Seed of the recorded sets; --run.seed is that of training.
        json: print one JSON object instead of a table.
        flags: Flags of the experiment.
    """

    experiment: tyro.conf.Positional[str]
    out: Path
    env_steps: int = 100_000
    evaluations: int = 20
    stochastic: bool = True
    seed: int = 0
    json: bool = False
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Trains, writes what is missing, and prints a table of the sets.

        Returns:
            0; the exit status of training if it failed; that of the signal if one stopped training, which saves first.
        """
        from jaxsrl.evaluation.standard_sets import TRAINING, SetsConfig, make_sets
        from jaxsrl.experiment import load_experiment
        from jaxsrl.machine.python_command import jaxsrl_command
        from jaxsrl.machine.run_tasks import Task, run_tasks
        from jaxsrl.tune.managed_runs import validate_flags

        if self.evaluations < 1:
            raise UserError(f"expected at least one version to evaluate: got --evaluations {self.evaluations}")
        validate_flags(_OWNED, self.flags)
        config = SetsConfig(self.env_steps, self.stochastic, self.seed)
        path = find_experiment(self.experiment)
        experiment = load_experiment(path, self.flags)
        run = experiment.run
        if run.eval.mode == "sample":
            raise UserError("the sets need greedy evaluations: expected --eval.mode greedy or both, got sample")
        every = str(max(1, run.total_env_steps // self.evaluations))
        own = {
            "--run.directory": str(self.out),
            "--run.name": "run",
            "--run.record": str(self.out / TRAINING),
            "--eval.every": every,
            "--checkpoint.keep-every": every,
        }
        options = [text for option in own.items() for text in option]
        command = jaxsrl_command("train", str(path), *self.flags, *options)

        status = run_tasks([Task("training", command)], 1, show_line)
        if status:
            return status
        rows = make_sets(self.out / "run", self.out, config, show_line, experiment.env)
        print_tables({"sets": rows}, self.json, f"datasets in {self.out}")
        return 0
