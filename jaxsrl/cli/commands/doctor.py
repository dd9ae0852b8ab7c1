"""`jaxsrl doctor`."""

import dataclasses
import json
from pathlib import Path

from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Check this installation and machine, and list files and processes that dead runs left behind.

    Attributes:
        runs: directory of runs to check.
        clean: also remove what dead runs left behind; live runs are never touched.
        json: print one JSON object instead of a table.
    """

    runs: Path = Path("runs")
    clean: bool = False
    json: bool = False

    def run(self) -> int:
        """Prints the report; the exit status is 1 if there is a problem."""
        from jaxsrl.machine.doctor.report import examine, print_report

        if self.runs != Doctor.runs and not self.runs.is_dir():
            raise UserError(f"expected a directory of runs, --runs: there is none at {self.runs}")
        report = examine(self.runs, self.clean)
        if self.json:
            print(json.dumps(report.to_json()))  # noqa: T201
        else:
            print_report(report)
        return 0 if report.is_well else 1
