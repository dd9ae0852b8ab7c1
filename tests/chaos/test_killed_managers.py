"""Managers of runs: any one process is killed at a random moment, and the result is that of an undisturbed command.

JAXSRL_TEST_KILLS sets the number of kills of each manager.
"""

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.sessions import ROOT, end_session

KILLS = int(os.environ.get("JAXSRL_TEST_KILLS", "1"))
LIMIT_SECONDS = 600.0
SPACE = '"agent.learning_rate" = {low = 1e-4, high = 1e-2, log = true}\n'
# Plans without workers: an environment whose worker was killed starts another episode.
CARTPOLE = "--plan serial --run.num-envs 8 --eval.final-episodes 2 --checkpoint.interval-updates 2"
KUHN = "--env.suite pgx --env.id kuhn_poker --env.kwargs.two_agents true --plan device_only --games 64"
KUHN += " --eval.final-episodes 0 --checkpoint.interval-updates 2 --env-steps 8192"
MANAGERS = {
    "tune": f"ppo_cartpole --space space.toml --trials 2 --pruner none --run.total-env-steps 4096 {CARTPOLE}",
    "population": f"ppo_cartpole --space space.toml --members 2 --rounds 2 --share 0.5 --env-steps 2048 {CARTPOLE}",
    "psro": f"ppo --iterations 2 {KUHN}",
    "league": f"ppo --rounds 2 {KUHN}",
}


def result(directory):
    """Returns what a manager wrote about all of its runs."""
    files = [directory / name for name in ("best.yaml", "population.json", "psro.json", "league.json")]
    written = [path.read_text() for path in files if path.exists()]
    trials = [json.loads(path.read_text()) for path in sorted(directory.glob("trial_*/result.json"))]
    assert written
    return written, trials


@pytest.mark.slow
@pytest.mark.timeout(600 + 1800 * KILLS)
@pytest.mark.parametrize("manager", MANAGERS)
def test_a_killed_process_changes_no_result(tmp_path, manager):
    pytest.importorskip({"tune": "optuna", "population": "jaxsrl"}.get(manager, "pgx"))
    (tmp_path / "space.toml").write_text(SPACE)

    def start(number):
        command = [sys.executable, "-m", "jaxsrl.cli.main", manager, *shlex.split(MANAGERS[manager])]
        with (tmp_path / f"{number}.txt").open("ab") as output:
            return subprocess.Popen(
                [*command, "--directory", f"kill{number}"],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    began = time.monotonic()
    assert start("none").wait(LIMIT_SECONDS) == 0, (tmp_path / "none.txt").read_text()
    seconds, rng = time.monotonic() - began, random.Random()
    whole = result(tmp_path / "killnone")
    for number in range(KILLS):
        process = start(number)
        try:
            moment = rng.uniform(0.0, 0.8) * seconds  # later commands are faster
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            own = [pid for pid in (process.pid, *descendants(process.pid)) if process.poll() is None]
            killed = rng.choice(own) if own else 0
            what = f"process {own.index(killed)} of {len(own)} after {moment:.1f} s" if own else "nothing"
            with contextlib.suppress(ProcessLookupError):
                os.kill(killed or process.pid, signal.SIGKILL if own else 0)
            status = process.wait(LIMIT_SECONDS)
            if status:
                assert (killed, status) == (process.pid, -signal.SIGKILL), f"killed {what}: status {status}"
                assert start(number).wait(LIMIT_SECONDS) == 0, what
        finally:
            end_session(process)
        assert result(tmp_path / f"kill{number}") == whole, f"killed {what}"
        print(f"{manager}: killed {what}: the same")


def descendants(pid):
    """Returns the ids of the processes that a process has started, and those that these have."""
    found = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found
