"""`jaxsrl inspect`."""

import dataclasses
import json
from pathlib import Path

import tyro


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Show the contents of a run or a checkpoint: parameters, configuration, environment, versions, and integrity.

    Attributes:
        path: run directory (its newest good checkpoint is shown), RUN@QUERY for a model of it, or checkpoint directory.
        all: list all arrays, not only parameters.
        json: print one JSON object, with all arrays, instead of tables.
    """

    path: tyro.conf.Positional[Path]
    all: bool = False
    json: bool = False

    def run(self) -> int:
        """Prints the inspection."""
        from jaxsrl.cli.inspection_table import print_inspection
        from jaxsrl.runs.inspect import inspect

        inspection = inspect(self.path)
        if self.json:
            print(json.dumps(inspection.to_json()))  # noqa: T201
        else:
            print_inspection(inspection, self.all)
        return 0
