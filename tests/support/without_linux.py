"""Runs an experiment as on macOS with arm64: without Linux's system calls and files, as far as Python shows them."""

import builtins
import io
import os
import platform
import select
import signal
import sys
from pathlib import Path

import psutil

_ABSENT = {
    os: (
        "sched_getaffinity", "sched_setaffinity", "sched_yield", "eventfd", "eventfd_read", "eventfd_write", "EFD_NONBLOCK",
        "EFD_CLOEXEC", "EFD_SEMAPHORE", "memfd_create", "pidfd_open", "posix_fallocate",
    ),
    select: ("epoll",),
    signal: ("pidfd_send_signal",),
}  # fmt: skip
_FOLDERS = ("/proc", "/sys", "/dev/shm")


def remove_linux(system: str, machine: str) -> None:
    """Makes this process look like one on another system; for a process that does nothing else."""
    platform.system, platform.machine = lambda: system, lambda: machine
    # psutil asks each system in its own way; only here that is by reading files.
    psutil._common.open = open  # pyright: ignore[reportAttributeAccessIssue]
    for module, names in _ABSENT.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for module, name in ((builtins, "open"), (io, "open"), (os, "statvfs")):
        setattr(module, name, _without_folders(getattr(module, name)))


def _without_folders(function):
    def checked(path, *arguments, **settings):
        if str(path).startswith(_FOLDERS):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *arguments, **settings)

    return checked


if __name__ == "__main__":
    remove_linux("Darwin", "arm64")
    from jaxsrl.cli.run_script import run_script

    run_script(str(Path(__file__).parents[2] / "experiments" / "ppo_cartpole.py"), sys.argv[1:])
