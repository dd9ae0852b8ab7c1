"""`jaxsrl config`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Literal

import tyro

from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class ShowConfig:
    """Show the options of a run, or those in which two runs differ.

    Attributes:
        action: "show" prints the options of one run as a file for --config; "diff" prints the options that differ.
        paths: run directories or configuration files: one to show, two to compare.
        format: Format of "show".
    """

    action: tyro.conf.Positional[Literal["show", "diff"]]
    paths: tyro.conf.Positional[tuple[Path, ...]]
    format: Literal["yaml", "json"] = "yaml"

    def run(self) -> int:
        """Prints the options or their differences."""
        from jaxsrl.config.files import read_config_file
        from jaxsrl.config.serialization import differences

        wanted = 1 if self.action == "show" else 2
        if len(self.paths) != wanted:
            raise UserError(f"jaxsrl config {self.action} needs {wanted} run or file: got {len(self.paths)}")
        files = [read_config_file(path) for path in self.paths]
        if self.action == "diff":
            old, new = (file.options for file in files)
            for line in differences(old, new):
                print(line)  # noqa: T201
        elif self.format == "json":
            print(json.dumps(files[0].options, indent=1))  # noqa: T201
        else:
            import yaml

            yaml.safe_dump(files[0].options, sys.stdout, sort_keys=False)
        return 0
