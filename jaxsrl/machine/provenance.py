"""Provenance of a run: its command, the commit and versions of the code, and the machine."""

import functools
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from envpool_bridge.envs.fingerprint import own_source
from envpool_bridge.limits import count_cores
from jaxsrl.machine.package_names import find_version
from jaxsrl.machine.resources import cpu_model

_PACKAGES = ("jaxsrl", "jax", "jaxlib", "numpy", "flax", "optax", "gymnasium")
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
_GIT_SECONDS = 10.0
_ROOT = Path(__file__).resolve().parents[2]
_SAME_EXPERIMENT = _ROOT / "jaxsrl/cli/same_experiment.py"  # what `jaxsrl train --config FILE` runs


def read_provenance() -> dict[str, Any]:
    """Returns the provenance of a run of this process as JSON data; call it when the environments' package is imported.

    Returns:
        `command`, see `read_command`; `commit`, "" outside a checkout; `source`, see `read_code`; `versions` by package; and
        `hardware`: `cpu`, `cores` and `gpu` ("" without one).
    """
    versions = read_versions()
    return {
        "command": read_command(),
        "commit": versions.pop("commit"),
        "source": versions.pop("source"),
        "versions": versions,
        "hardware": {"cpu": cpu_model(), "cores": count_cores(), "gpu": _gpus()},
    }


def read_versions() -> dict[str, str]:
    """Returns what must be equal in all processes of a run: commit and contents of jaxsrl's code, and versions of packages."""
    imported = [name for name, module in _ENV_PACKAGES.items() if module in sys.modules]
    return {"commit": describe_commit(_ROOT), **read_code(), **_find_versions(imported)}


@functools.cache
def read_code() -> Mapping[str, str]:
    """Returns the sha256 of the source files of jaxsrl, as "source", and the versions of Python and the packages of all runs."""
    return {"source": own_source(), "python": platform.python_version(), **_find_versions(_PACKAGES)}


def read_command() -> str:
    """Returns the command line that starts the program of this process again; "" in a notebook or an interactive session."""
    main, arguments = sys.modules["__main__"], sys.argv
    if arguments[0] == "-c":
        return shlex.join(["python", *sys.orig_argv[1:]])
    if not getattr(main, "__file__", None):
        return ""
    spec = getattr(main, "__spec__", None)
    program = program_command(arguments[0]) if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"
    return shlex.join([*shlex.split(program), *arguments[1:]])


def program_command(file: str) -> str:
    """Returns the command that runs a Python file; for a listed experiment it works in every directory."""
    if Path(file).resolve() == _SAME_EXPERIMENT:
        return "jaxsrl train"
    return experiment_command(file) if _is_listed(file) else f"python {shlex.quote(file)}"


def experiment_command(file: str) -> str:
    """Returns the command that trains the experiment in a file; its --help shows the flags."""
    return f"jaxsrl train {Path(file).stem if _is_listed(file) else shlex.quote(file)}"


def _is_listed(file: str) -> bool:
    """Returns whether `jaxsrl train` finds the file by its name."""
    return Path(file).resolve().parent in (Path("experiments").resolve(), _ROOT / "experiments")


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


def _find_versions(names: Iterable[str]) -> dict[str, str]:
    return {name: version for name in names if (version := find_version(name, missing=""))}


def _gpus() -> str:
    import jax

    devices = [device for device in jax.local_devices() if device.platform != "cpu"]
    return f"{len(devices)} x {devices[0].device_kind}" if devices else ""
