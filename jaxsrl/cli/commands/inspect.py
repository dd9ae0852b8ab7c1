"""`jaxsrl inspect`."""

import dataclasses
import json
import sys
from pathlib import Path

import tyro


@dataclasses.dataclass(frozen=True)
class Inspect:
    """Show what a run or a checkpoint holds: parameters, configuration, environment, versions, and whether it is whole.

    Attributes:
        path: run directory (its newest good checkpoint is shown) or checkpoint directory.
        everything: list all arrays, not the parameters alone.
        json: print one JSON object, with all arrays, instead of tables.
    """

    path: tyro.conf.Positional[Path]
    everything: bool = False
    json: bool = False

    def run(self) -> int:
        """Looks; the exit status is 1 if the one checkpoint asked for is damaged."""
        from jaxsrl.checkpoints.manifest import CorruptCheckpointError
        from jaxsrl.cli.inspection_table import print_inspection
        from jaxsrl.runs.inspect import inspect

        try:
            found = inspect(self.path)
        except CorruptCheckpointError as error:
            print(f"error: damaged checkpoint {error}", file=sys.stderr)  # noqa: T201
            return 1
        if self.json:
            print(json.dumps(found.to_json()))  # noqa: T201
        else:
            print_inspection(found, self.everything)
        return 0
