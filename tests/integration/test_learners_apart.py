"""Learner processes on machines of their own: what may not join is rejected there in one line, and the run goes on."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.integration.machines_apart import Network, NoNamespacesError, namespaces
from tests.integration.test_distributed_learners import SIZES, wait_for_checkpoint
from tests.support.learner_processes import ROOT, ends

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def network():
    before = namespaces()
    try:
        with contextlib.closing(Network(3)) as started:
            yield started
    except NoNamespacesError as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert namespaces() == before


def test_what_may_not_join_is_rejected_on_its_machine(network, tmp_path):
    flags = (
        *SIZES,
        "--plan",
        "multiple_learners",
        "--run.total-env-steps",
        "100000000",
        "--machine.num-cpu-devices",
        "1",
    )
    (tmp_path / "code").mkdir()
    for package in ("agents", "envpool_bridge", "experiments", "jaxsrl"):
        shutil.copytree(ROOT / package, tmp_path / "code" / package)
    with (tmp_path / "code/agents/ppo.py").open("a") as file:
        file.write("# another line\n")
    other_version = tmp_path / "version/optax-99.0.dist-info"
    other_version.mkdir(parents=True)
    (other_version / "METADATA").write_text("Metadata-Version: 2.1\nName: optax\nVersion: 99.0\n")

    def start(number, process, path=str(ROOT), coordinator="m1:7777", own_address="", name="run"):
        command = [sys.executable, "experiments/ppo_cartpole.py", *flags, "--run.directory", str(tmp_path / name)]
        command += ["--distributed.coordinator", coordinator, "--distributed.num-processes", "2"]
        command += ["--distributed.process-id", str(process), "--distributed.lost-seconds", "60"]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
        options = {"env": environment, "cwd": path.split(":")[-1], "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return network.start(number, *command, own_address=own_address, **options)

    started = [start(1, 0), start(2, 1)]
    try:
        wait_for_checkpoint(tmp_path / "run")
        rejected = {
            "source: ": start(3, 1, str(tmp_path / "code"), name="code"),
            "optax: ": start(3, 1, f"{tmp_path / 'version'}:{ROOT}", name="version"),
            "process 1 of this run is already there (process ": start(3, 1, name="third"),
            "this machine's name m3 is the loopback address 127.0.1.1": start(
                3, 1, own_address="127.0.1.1", name="name"
            ),
            "the host of --distributed.coordinator m9:7777 is unknown here": start(
                3, 1, coordinator="m9:7777", name="none"
            ),
        }
        began = time.monotonic()
        for words, process in rejected.items():
            ((status, _, said),) = ends([process])
            print(f"{words}after {time.monotonic() - began:.1f} s: {said}")
            assert (status, len(said.strip().splitlines())) == (2, 1), said
            assert words in said
        assert [process.poll() for process in started] == [None, None]
    finally:
        started[1].send_signal(signal.SIGTERM)
        ended = ends(started)
    assert [status for status, _, _ in ended] == [143, 143], ended
