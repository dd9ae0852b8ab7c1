"""The command line of a training run, started in a process: what items with whole runs share."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.gpu.conftest import DRY

ROOT = Path(__file__).parents[2]
PLATFORM = "cpu" if DRY else "cuda"
HAS_ATARI = bool(importlib.util.find_spec("ale_py") and importlib.util.find_spec("cv2"))
ATARI = HAS_ATARI and not DRY  # too slow to compile for a dry run

# A shell ignores SIGINT in what it starts in the background, and so would everything started from there.
HEEDS_INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def command(experiment, directory, *flags):
    own = ("--run.name", "run", "--run.directory", str(directory), "--eval.final-episodes", "0")
    return [sys.executable, "-m", "jaxsrl.cli.main", "train", experiment, *own, *flags]


def start(arguments, **environment):
    own = {**os.environ, **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": own, "cwd": ROOT}
    return subprocess.Popen([sys.executable, "-c", HEEDS_INTERRUPTS, *arguments], start_new_session=True, **pipes)


@contextlib.contextmanager
def running(*processes):
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def ends(arguments, seconds=140, **environment):
    """(exit status, output)."""
    with running(start(arguments, **environment)) as (process,):
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output


def small(updates, *flags):
    sizes = ("--run.num-envs", "16", "--run.rollout-length", "16", "--pool.num-workers", "2")
    return (*sizes, "--run.total-env-steps", str(256 * updates), *flags)


def wait_for_checkpoint(directory, process):
    deadline = time.monotonic() + 90
    while not list(directory.glob("run/checkpoints/[0-9]*/MANIFEST.json")):
        assert process.poll() is None, process.communicate()[0][-1000:]
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.2)
