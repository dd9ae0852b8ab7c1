"""`jaxsrl doctor`."""

import dataclasses
import json
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Check this installation and machine, and list what dead runs left behind.

    Attributes:
        runs: directory of runs to look into.
        clean: also remove what dead runs left; what is of a run that lives is never touched.
        json: print one JSON object instead of a table.
    """

    runs: Path = Path("runs")
    clean: bool = False
    json: bool = False

    def run(self) -> int:
        """The exit status: 0 if all is well, 1 if something is not."""
        from jaxsrl.doctor.report import examine, print_report

        report = examine(self.runs, self.clean)
        if self.json:
            print(json.dumps(report.to_json()))  # noqa: T201
        else:
            print_report(report)
        return 0 if report.is_well else 1
