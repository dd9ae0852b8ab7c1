"""Where compiled programs are kept, and when they are not."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from pathlib import Path
import jax
from jaxsrl.machine.program_cache import enable_program_cache
enable_program_cache(Path(sys.argv[1]), sys.argv[2])
jax.jit(lambda x: x * 2 + 1)(3.0).block_until_ready()
print(json.dumps([jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size]))
"""


def kept(tmp_path, backend, **environment):
    """(directory, limit) that jax has, and the programs kept beside the runs."""
    cleared = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    settings = {**cleared, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **environment}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "runs"), backend]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True, timeout=120)
    directory, limit = json.loads(done.stdout)
    return directory, limit, list((tmp_path / "runs").glob(".programs/*/*-cache"))


def test_program_cache_is_next_to_the_runs_and_bounded(tmp_path):
    directory, limit, programs = kept(tmp_path, "gpu")
    assert directory.startswith(str(tmp_path / "runs" / ".programs"))
    assert 0 < limit < 10e9
    assert programs


@pytest.mark.parametrize(
    ("backend", "environment"),
    [("cpu", {}), ("gpu", {"JAX_ENABLE_COMPILATION_CACHE": "0"}), ("gpu", {"JAX_COMPILATION_CACHE_DIR": "elsewhere"})],
)
def test_program_cache_is_off_on_cpu_or_by_user_choice(tmp_path, backend, environment):
    environment = {
        name: str(tmp_path / value) if value == "elsewhere" else value for name, value in environment.items()
    }
    directory, _, programs = kept(tmp_path, backend, **environment)
    assert directory == environment.get("JAX_COMPILATION_CACHE_DIR")
    assert programs == []


@pytest.mark.slow
def test_program_cache_follows_the_next_run(tmp_path):
    twice = SCRIPT + SCRIPT.replace("sys.argv[1]", "sys.argv[3]").replace("x * 2", "x * 3")
    settings = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    settings |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-c", twice, str(tmp_path / "one"), "gpu", str(tmp_path / "two")]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True, timeout=120)
    directories = [json.loads(line)[0] for line in done.stdout.splitlines()]
    for directory, name in zip(directories, ("one", "two"), strict=True):
        assert directory.startswith(str(tmp_path / name))
        assert list((tmp_path / name).glob(".programs/*/*-cache"))
