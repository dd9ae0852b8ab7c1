"""What every experiment script shares: short flags, devices made of the host, one line for what cannot be done."""

import dataclasses
import os
import subprocess
import sys

import pytest

from jaxsrl.config.run_config import RunConfig
from jaxsrl.launch import launch

SCRIPT = """
import dataclasses, sys
from jaxsrl.config.run_config import RunConfig
from jaxsrl.launch import launch

@dataclasses.dataclass(frozen=True)
class Experiment:
    run: RunConfig = RunConfig()

def main(experiment):
    import jax
    print("devices", len(jax.local_devices()))

if sys.argv[1] == "late":
    import jax
    jax.local_devices()
launch(main, Experiment, arguments=sys.argv[2:])
"""


@dataclasses.dataclass(frozen=True)
class Experiment:
    run: RunConfig = RunConfig(num_envs=8)  # noqa: RUF009


def ran(when: str, *arguments: str, flags: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SCRIPT, when, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=150)


@pytest.mark.parametrize("flags", [("--policy", "serial"), ("--policy=serial",), ("--run.policy", "serial")])
def test_the_policy_has_a_short_flag(flags):
    seen = []
    launch(seen.append, Experiment, arguments=flags)
    assert seen == [Experiment(RunConfig(num_envs=8, policy="serial"))]


def test_help_shows_the_short_flag(capsys):
    with pytest.raises(SystemExit) as stopped:
        launch(print, Experiment, arguments=["--help"])
    assert stopped.value.code == 0
    assert "--policy STR, --run.policy STR" in capsys.readouterr().out


def test_the_host_is_split_before_jax_begins():
    done = ran("early", "--run.host-devices", "4")
    assert (done.stdout, done.returncode) == ("devices 4\n", 0), done.stderr
    assert ran("early").stdout == "devices 1\n"


@pytest.mark.slow
def test_a_host_that_is_split_already_is_left_as_it_is():
    done = ran("late", "--run.host-devices", "4", flags="--xla_force_host_platform_device_count=4")
    assert (done.stdout, done.returncode) == ("devices 4\n", 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["", "--xla_force_host_platform_device_count=3"])
def test_splitting_the_host_too_late_is_refused_in_one_line(flags):
    done = ran("late", "--run.host-devices", "4", flags=flags)
    assert done.returncode == 2
    assert f"jax already runs with {3 if flags else 1} host devices; split the host" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_flag_is_stronger_than_the_environment_variable():
    assert (
        ran("early", "--run.host-devices", "2", flags="--xla_force_host_platform_device_count=3").stdout
        == "devices 2\n"
    )
