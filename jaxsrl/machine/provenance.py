"""Provenance of a run: its command, the commit and versions of the code, and the machine."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxsrl.machine.package_names import find_version
from jaxsrl.machine.resources import count_cores, cpu_model

_PACKAGES = ("jaxsrl", "jax", "gymnasium")
_ENV_PACKAGES = {
    "ale-py": "ale_py",
    "box2d": "Box2D",
    "box2d-py": "Box2D",
    "brax": "brax",
    "crafter": "crafter",
    "gymnax": "gymnax",
    "jaxmarl": "jaxmarl",
    "jumanji": "jumanji",
    "pgx": "pgx",
    "minigrid": "minigrid",
    "mpe2": "mpe2",
    "mujoco": "mujoco",
    "open-spiel": "pyspiel",
    "overcooked": "overcooked",
    "pettingzoo": "pettingzoo",
    "vizdoom": "vizdoom",
}
"""Module of each package of environments."""
_LOCAL_FLAGS = ("--run.directory", "--run.name")
_GIT_SECONDS = 10.0


def read_provenance() -> dict[str, Any]:
    """Returns the provenance of a run of this process as JSON data; call it when the environments' package is imported.

    Returns:
        `command`, "" unless an experiment's file is the main program; `commit`, "" outside a checkout; `versions` by package; and
        `hardware`: `cpu`, `cores` and `gpu` ("" without one).
    """
    versions = read_versions()
    return {
        "command": format_command(sys.argv),
        "commit": versions.pop("commit"),
        "versions": versions,
        "hardware": {"cpu": cpu_model(), "cores": count_cores(), "gpu": _gpus()},
    }


def read_versions() -> dict[str, str]:
    """Returns what must be equal in all processes of a run: the commit of jaxsrl's code, and the versions of packages."""
    return {"commit": describe_commit(Path(__file__).parents[2]), **_versions()}


def format_command(arguments: Sequence[str]) -> str:
    """Returns the command that repeats a training run, without directories; "" if the program is no experiment's file.

    Args:
        arguments: file and flags of the experiment, as in sys.argv.
    """
    path = Path(arguments[0])
    if path.parent.name != "experiments" or path.suffix != ".py":
        return ""
    flags, kept = list(arguments[1:]), ["jaxsrl", "train", path.stem]
    while flags:
        flag = flags.pop(0)
        name, _, value = flag.partition("=")
        if name not in _LOCAL_FLAGS:
            kept.append(flag)
        elif not value and flags:
            flags.pop(0)
    return shlex.join(kept)


def describe_commit(root: Path) -> str:
    """Returns the commit of a checkout, with "-dirty" after it where files differ; "" if `root` is none, or git is missing."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--tags"]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # the index belongs to the user's own commands
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _versions() -> dict[str, str]:
    names = [*_PACKAGES, *(name for name, module in _ENV_PACKAGES.items() if module in sys.modules)]
    return {name: version for name in names if (version := find_version(name, missing=""))}


def _gpus() -> str:
    import jax

    devices = [device for device in jax.local_devices() if device.platform != "cpu"]
    return f"{len(devices)} x {devices[0].device_kind}" if devices else ""
