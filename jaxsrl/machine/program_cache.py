"""Compiled programs of accelerators, kept from run to run by jax's persistent compilation cache."""

import hashlib
import importlib.util
import platform
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_DIRECTORY = ".programs"
_MAX_BYTES = 2_000_000_000
_chosen: list[str] = []  # by an earlier run of this process; otherwise a directory is the user's choice


def enable_program_cache(runs: Path, backend: str) -> None:
    """Enables jax's compilation cache in a directory beside the runs, unless the user chose another or turned the cache off.

    Not on a host without an accelerator: jax's loader for the host's programs rejects some that the same machine compiled, with an
    error line each, and may run others with instructions that the machine lacks (jax issue 38445). There, compiling takes seconds.

    Args:
        runs: directory of the runs, which share it; perhaps with other machines.
        backend: jax's default platform.
    """
    current = _setting("jax_compilation_cache_dir")
    if backend == "cpu" or (current and current not in _chosen) or not _setting("jax_enable_compilation_cache"):
        return
    chosen = str((runs / _DIRECTORY / _machine()).absolute())
    if chosen == current:
        return
    _chosen[:] = [chosen]
    jax.config.update("jax_compilation_cache_dir", chosen)
    if current:
        compilation_cache.reset_cache()  # jax opens a directory once
    # With a limit, jax takes a file lock, for which it needs this package.
    if _setting("jax_compilation_cache_max_size") < 0 and importlib.util.find_spec("filelock"):
        jax.config.update("jax_compilation_cache_max_size", _MAX_BYTES)


def _setting(name: str) -> Any:
    return getattr(jax.config, name)  # jax declares no types for these


def _machine() -> str:
    """Returns a name for machines whose processors are alike: programs of the host beside the accelerator are kept as well."""
    found = [platform.machine()]
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        found += [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    except OSError:
        found.append(platform.node())
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
