"""Persistent cache of compiled accelerator programs across runs, by jax's compilation cache."""

import hashlib
import importlib.util
import platform
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_DIRECTORY = ".programs"
_MAX_BYTES = 2_000_000_000
_chosen: list[str] = []  # directory set by an earlier run of this process; any other is the user's choice


def enable_program_cache(runs: Path, backend: str) -> None:
    """Enables jax's compilation cache in a directory next to the runs, unless the user set or disabled it.

    Hosts without an accelerator are excluded. There, jax's loader rejects some programs that the same machine compiled, with
    an error line each. It may run others with instructions that the machine lacks (jax issue 38445). Compilation takes only
    seconds there.

    Args:
        runs: directory of the runs, which share the cache, possibly with other machines.
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
        compilation_cache.reset_cache()  # jax opens a directory only once
    # With a size limit, jax uses file locks, which need this package.
    if _setting("jax_compilation_cache_max_size") < 0 and importlib.util.find_spec("filelock"):
        jax.config.update("jax_compilation_cache_max_size", _MAX_BYTES)


def _setting(name: str) -> Any:
    return getattr(jax.config, name)  # jax declares no types for these


def _machine() -> str:
    """Returns a name shared by machines with the same processor, because programs of the host are cached as well."""
    features = [platform.machine()]
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        features += [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    except OSError:
        features.append(platform.node())
    return hashlib.sha256("\n".join(features).encode()).hexdigest()[:16]
