"""Runs an experiment's file as `python FILE` does, with the exit statuses of a run for stop signals from the start.

Without it, signals that arrive during the imports of the file have Python's handlers: jax swallows a KeyboardInterrupt that is
raised in its callbacks, and the run continues; SIGUSR1 ends with a status that no scheduler requeues.
"""

import os
import runpy
import sys

from jaxsrl.machine.lifecycle import exit_now, stop_on_signals


def run_script(path: str, arguments: list[str]) -> None:
    """Runs the file at `path` as the main module, with `arguments` on its command line."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    with stop_on_signals(exit_now):
        runpy.run_path(path, run_name="__main__")
