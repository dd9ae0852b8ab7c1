"""Places of the runs of a manager: the values of `--runs-on`. The command line imports this module at its start."""

from typing import Literal

RunsOn = Literal["here", "auto", "local"]
"""This machine, the Ray cluster that is running, or a small one that is started on this machine."""
