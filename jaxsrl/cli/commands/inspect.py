"""`jaxsrl inspect`."""

import dataclasses
import json
import sys
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
        """Prints the inspection; the exit status is 1 if the given checkpoint is damaged."""
        from jaxsrl.checkpoints.manifest import CorruptCheckpointError
        from jaxsrl.cli.inspection_table import print_inspection
        from jaxsrl.runs.inspect import inspect

        try:
            inspection = inspect(self.path)
        except CorruptCheckpointError as error:
            print(f"error: damaged checkpoint {error}", file=sys.stderr)  # noqa: T201
            return 1
        if self.json:
            print(json.dumps(inspection.to_json()))  # noqa: T201
        else:
            print_inspection(inspection, self.all)
        return 0
