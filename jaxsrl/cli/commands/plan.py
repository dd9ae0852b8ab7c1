"""`jaxsrl plan`."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from envpool_bridge.errors import UserError
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.cli.unused_options import validate_unused

if TYPE_CHECKING:
    from jaxsrl.experiment import Experiment


@dataclasses.dataclass(frozen=True)
class ShowPlan:
    """Show the placement of an experiment and its data flow, without training. Further flags are the experiment's.

    Attributes:
        experiment: name of one in experiments/, as for `jaxsrl train`, or a Python file with a value `EXPERIMENT`.
        plan: name of a plan, or your own as file.py:function; "" for the experiment's.
        cores: processor cores to plan for; 0 for those of this machine.
        gpus: GPUs to plan for; 0 for the devices of this machine.
        out: also draw it into this .svg file.
        json: print one JSON object instead of tables.
        simulate: predict the speed on --cores and --gpus from a calibration; without these, on the clusters of the SRL and MSRL
            papers.
        calibrate: Whether --simulate measures this machine first; takes a minute on an otherwise idle machine.
        check: Whether --simulate trains a few small runs here and compares their speeds with the predictions.
        calibration: file of measured costs.
        network: Network between the hosts of --simulate: 10gbe, 100gbe, hdr or ndr.
        flags: remaining flags, for the experiment's command line.
    """

    experiment: tyro.conf.Positional[str]
    plan: str = ""
    cores: int = 0
    gpus: int = 0
    out: Path | None = None
    json: bool = False
    simulate: bool = False
    calibrate: bool = False
    check: bool = False
    calibration: Path = Path("calibration.json")
    network: str = "hdr"
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Prints the plan."""
        self._validate()
        from jaxsrl.cli.plan_table import print_plan
        from jaxsrl.experiment import load_experiment
        from jaxsrl.planner.plan_experiment import plan_experiment

        path = find_experiment(self.experiment)
        flags = [*self.flags, "--plan", self.plan] if self.plan else self.flags
        experiment = load_experiment(path, flags)
        if self.simulate:
            return self._simulate(experiment, path.stem)
        planned = plan_experiment(experiment, self.cores, self.gpus)
        if self.out is not None:
            from jaxsrl.plan.drawing.svg import draw_plan

            draw_plan(planned.plan, planned.sizes, self.out, planned.resources.platform)
        if self.json:
            print(json.dumps(planned.to_json()))  # noqa: T201
        else:
            print_plan(planned)
        return 0

    def _validate(self) -> None:
        """Rejects flags without an effect.

        Raises:
            UserError: If there are such flags.
        """
        if not self.simulate:
            options = ("calibrate", "check", "calibration", "network")
            validate_unused(self, options, "nothing is predicted without --simulate")
            return
        validate_unused(self, ("out",), "a simulation draws no plan")
        if bool(self.cores) != bool(self.gpus):
            raise UserError(f"--simulate needs both --cores and --gpus, or neither: got {self.cores} and {self.gpus}")
        if self.check:
            validate_unused(self, ("cores", "gpus", "network"), "--check compares runs on this machine")
        elif not self.cores:
            validate_unused(
                self, ("network",), "without --cores and --gpus, the clusters of the papers have their own network"
            )

    def _simulate(self, experiment: "Experiment", stem: str) -> int:
        from jaxsrl.planner.predict import Cluster
        from jaxsrl.planner.report import simulate_experiment
        from jaxsrl.terminal.tables import print_tables

        name = f"{self.cores:,} cores and {self.gpus} GPUs"
        cluster = Cluster(name, self.cores, self.gpus, network=self.network) if self.cores else None
        tables = simulate_experiment(experiment, stem, self.calibration, self.calibrate, self.check, cluster)
        print_tables(tables, self.json, f"simulation of {stem}")
        return 0
