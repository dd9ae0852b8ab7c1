"""Runs an experiment's file as `python FILE` does, and handles stop signals from the start.

Otherwise signals during the imports of the file would have Python's handlers. jax swallows a KeyboardInterrupt raised in its
callbacks, and the run would continue. SIGUSR1 would end with a status that no scheduler requeues.
"""

import os
import runpy
import sys

from jaxsrl.machine.lifecycle import exit_now, exit_on_user_error, stop_on_signals
from jaxsrl.machine.package_names import raise_conflict


@exit_on_user_error
def run_script(path: str, arguments: list[str]) -> None:
    """Runs the file at `path` as the main module, with `arguments` on its command line."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    raise_conflict()  # with a package `agents` next to the file
    with stop_on_signals(exit_now):
        runpy.run_path(path, run_name="__main__")
