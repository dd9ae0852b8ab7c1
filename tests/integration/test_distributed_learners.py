"""Learner processes that train together: the parameters of one process, stops together, and what happens when one is lost."""

import json
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from jaxsrl.checkpoints.store import load_checkpoint
from jaxsrl.metrics.evaluations import read_evaluations
from tests.support import learner_processes
from tests.support.learner_processes import END_SECONDS, ends

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UPDATES = 20
SIZES = (
    *("--run.num-envs", "16", "--run.rollout-length", "8", "--run.name", "run", "--learner.num-devices", "2"),
    *("--checkpoint.interval-updates", "5", "--eval.final-episodes", "0", "--network.hidden-sizes", "16"),
    *("--agent.num-minibatches", "2", "--agent.num-epochs", "2"),
)
PPO = "experiments/ppo_cartpole.py"


def budget(directory: Path, updates: int) -> tuple[str, ...]:
    return (*SIZES, "--run.total-env-steps", str(16 * 8 * updates), "--run.directory", str(directory))


def start(directory: Path, *flags: str, updates: int = UPDATES):
    return learner_processes.start(PPO, *budget(directory, updates), *flags)


def start_two(
    directory: Path,
    *flags: str,
    own: Mapping[int, tuple[str, ...]] | None = None,
    updates: int = UPDATES,
    programs: tuple[str, str] = (PPO, PPO),
):
    return learner_processes.start_two(programs, *budget(directory, updates), *flags, own=own)


def wait_for_checkpoint(directory: Path, seconds: float = END_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not list(directory.glob("run/checkpoints/[0-9]*/MANIFEST.json")):
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.05)


def final(directory: Path, updates: int = UPDATES) -> dict[str, np.ndarray]:
    arrays = load_checkpoint(directory / "run" / "checkpoints" / str(updates))[0]
    # Over which episodes a mean is taken follows the order of the processes; everything else is the same.
    return {name: value for name, value in arrays.items() if name != "episodes/recent"}


def assert_same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert set(one) == set(other)
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("plan_name", ["multiple_learners", "single_learner_fine"])
def test_two_processes_match_one_with_two_devices(tmp_path, plan_name):
    one = start(tmp_path / "one", "--machine.num-cpu-devices", "2", "--plan", plan_name)
    assert ends([one])[0][0] == 0
    ended = ends(start_two(tmp_path / "two", "--plan", plan_name))
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert_same_bits(final(tmp_path / "one"), final(tmp_path / "two"))
    assert "run directory" in ended[0][1]
    assert "run directory" not in ended[1][1]
    records = [json.loads(line) for line in (tmp_path / "two/run/metrics.jsonl").read_text().splitlines()]
    assert records[-1]["env_steps"] == 16 * 8 * UPDATES


def test_killed_process_ends_run_that_resumes_bit_for_bit(tmp_path):
    uninterrupted = start(
        tmp_path / "one", "--machine.num-cpu-devices", "2", "--plan", "multiple_learners", updates=100
    )
    assert ends([uninterrupted])[0][0] == 0
    flags = ("--plan", "multiple_learners")
    started = start_two(tmp_path / "two", *flags, updates=100)
    wait_for_checkpoint(tmp_path / "two")
    started[1].kill()
    killed_at = time.monotonic()
    (status, _, said), (killed, _, _) = ends(started, seconds=60)
    assert time.monotonic() - killed_at < 30
    assert (status, killed) == (75, -signal.SIGKILL)
    assert said.strip().splitlines()[-1].startswith("error: ")
    assert "resumes from the newest checkpoint" in said
    assert "resumes from the newest checkpoint" in (tmp_path / "two/run/log.txt").read_text()
    ended = ends(start_two(tmp_path / "two", *flags, updates=100))
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert "resumes" in ended[0][1]
    assert_same_bits(final(tmp_path / "one", 100), final(tmp_path / "two", 100))


def test_killed_process_0_is_reported_and_restarts(tmp_path):
    started = start_two(tmp_path, "--plan", "multiple_learners", updates=100_000)
    wait_for_checkpoint(tmp_path)
    started[0].kill()
    (killed, _, _), (status, _, said) = ends(started, seconds=60)
    assert (killed, status) == (-signal.SIGKILL, 75)
    assert said.strip().splitlines()[-1].startswith("error: ")
    assert "resumes from the newest checkpoint" in said


def test_a_signal_to_one_stops_both_after_the_same_update(tmp_path):
    started = start_two(tmp_path, "--plan", "multiple_learners", updates=100_000)
    wait_for_checkpoint(tmp_path)
    started[1].send_signal(signal.SIGTERM)
    ended = ends(started, seconds=60)
    assert [status for status, _, _ in ended] == [143, 143], ended
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    stopped = next(line for line in log if "stopped by SIGTERM at update" in line)
    update = int(stopped.split("update ")[1].split(",")[0])
    assert (tmp_path / "run" / "checkpoints" / str(update)).is_dir()


def again(process, *flags, root=learner_processes.ROOT):
    """Starts a process with the flags of another one, and more."""
    return learner_processes.start(*process.args[1:], *flags, root=root)


def test_other_code_and_options_are_rejected_and_the_run_goes_on(tmp_path):
    copy = tmp_path / "copy"
    for package in ("agents", "envpool_bridge", "experiments", "jaxsrl"):
        shutil.copytree(learner_processes.ROOT / package, copy / package)
    with (copy / "agents/ppo.py").open("a") as file:
        file.write("# another line\n")
    started = start_two(tmp_path, "--plan", "multiple_learners", own={1: ("--run.seed", "7")}, updates=100_000)
    other_seed, other_code = ends([started[1], again(started[1], "--run.seed", "0", root=copy)], seconds=120)
    assert started[0].poll() is None
    started[1] = again(started[1], "--run.seed", "0")
    wait_for_checkpoint(tmp_path)
    third = ends([again(started[1])], seconds=60)[0]
    started[0].send_signal(signal.SIGTERM)
    for (status, _, said), words in (
        (other_seed, "run.seed: 0 -> 7"),
        (other_code, "source: "),
        (third, "process 1 of this run is already there (process "),
    ):
        assert (status, said.count("error: ")) == (2, 1), said
        assert words in said.splitlines()[-1]
    ended = ends(started, seconds=60)
    assert [status for status, _, _ in ended] == [143, 143], ended
    assert ended[0][2].count("rejected process ") == 3


def test_a_coordinator_that_is_none_is_rejected(tmp_path):
    addresses = ("no-such-host.invalid:7777", "192.0.2.1:7777")
    ended = ends([again_at(tmp_path, address, process) for process, address in ((1, addresses[0]), (0, addresses[1]))])
    assert [(status, len(said.strip().splitlines())) for status, _, said in ended] == [(2, 1), (2, 1)], ended


def again_at(directory, address, process):
    place = ("--distributed.coordinator", address, "--distributed.num-processes", "2")
    return start(directory, *place, "--distributed.process-id", str(process))


def test_process_reports_missing_others(tmp_path):
    alone = start_two(tmp_path, own={0: ("--distributed.start-seconds", "3"), 1: ("--help",)})
    (status, _, said), _ = ends(alone, seconds=60)
    assert status == 75
    assert "error: the learner processes did not all come to 127.0.0.1:" in said


def test_stuck_process_ends_all_and_is_named(tmp_path):
    programs = (PPO, "tests/integration/stuck_learner.py")
    waits = dict.fromkeys(range(2), ("--distributed.wait-seconds", "40"))
    started = start_two(tmp_path, "--plan", "multiple_learners", own=waits, programs=programs)
    ended = ends(started)
    assert [status for status, _, _ in ended] == [75, 75], ended
    assert "process 0 of 2 waited for process 1, 40 s at most" in ended[0][2]


def test_failed_last_checkpoint_is_written_again(tmp_path):
    programs = ("tests/integration/failed_last_save.py", PPO)
    waits = dict.fromkeys(range(2), ("--distributed.wait-seconds", "40"))
    ended = ends(start_two(tmp_path, "--plan", "multiple_learners", own=waits, programs=programs))
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert "no space left on the device; training continues" in ended[0][1]
    assert f"checkpoint at update {UPDATES}" in (tmp_path / "run/log.txt").read_text()
    assert final(tmp_path)


def test_two_processes_restore_partially_from_one(tmp_path):
    alone = start(
        tmp_path, "--machine.num-cpu-devices", "2", "--plan", "serial", "--run.max-policy-lag", "0", updates=5
    )
    assert ends([alone])[0][0] == 0
    flags = ("--plan", "multiple_learners")
    ended = ends(start_two(tmp_path, *flags, updates=10))
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert "environments start new episodes" not in (tmp_path / "run/log.txt").read_text()
    ended = ends(start_two(tmp_path, *flags, "--network.hidden-sizes", "8", "--checkpoint.partial-restore", updates=15))
    assert [status for status, _, _ in ended] == [0, 0], ended
    log = (tmp_path / "run/log.txt").read_text()
    assert "partial restore: " in log
    assert "environments start new episodes" in log


def test_process_0_sends_checkpoint_to_other_directory(tmp_path):
    flags = ("--plan", "multiple_learners")
    own = {1: ("--run.directory", str(tmp_path / "other"))}
    arrays: list[dict[str, np.ndarray]] = []
    for _ in range(2):
        ended = ends(start_two(tmp_path / "two", *flags, own=own, updates=10))
        assert [status for status, _, _ in ended] == [0, 0], ended
        arrays.append(final(tmp_path / "two", 10))
        shutil.rmtree(tmp_path / "two/run/checkpoints/10")  # the next run resumes at update 5
    assert not (tmp_path / "other").exists()
    assert "at update 5 of 10" in (tmp_path / "two/run/log.txt").read_text()
    assert_same_bits(*arrays)


def test_checkpoint_rejected_by_process_0_ends_both(tmp_path):
    flags = ("--plan", "multiple_learners")
    own = {1: ("--run.directory", str(tmp_path / "other"))}
    ended = ends(start_two(tmp_path / "two", *flags, own=own, updates=5))
    assert [status for status, _, _ in ended] == [0, 0], ended
    for manifest in (tmp_path / "two/run/checkpoints").glob("*/MANIFEST.json"):
        manifest.write_text("damaged")
    ended = ends(start_two(tmp_path / "two", *flags, own=own, updates=10))
    assert [status for status, _, _ in ended] == [2, 2], ended
    assert all("no checkpoint of this run is whole" in said for _, _, said in ended)


def test_evaluation_of_two_learners_changes_nothing(tmp_path):
    flags = ("--eval.every", "1000", "--eval.episodes", "2")
    plain, watched = ends(start_two(tmp_path / "plain")), ends(start_two(tmp_path / "watched", *flags))
    assert [status for status, _, _ in plain + watched] == [0] * 4, watched
    assert_same_bits(final(tmp_path / "plain"), final(tmp_path / "watched"))
    assert [each.update for each in read_evaluations(tmp_path / "watched" / "run")] == [8, 16, 20]


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_process_is_no_reason_to_try_again(tmp_path, failing):
    """A callback of process 0, or an input of process 1, raises an error that would come again."""
    names = [PPO, PPO]
    names[failing] = "tests/integration/failing_learner.py"
    ended = ends(start_two(tmp_path, "--plan", "multiple_learners", programs=(names[0], names[1])))
    assert [status for status, _, _ in ended] == [1, 1], ended
    assert "ZeroDivisionError: before update 4" in ended[failing][2]
    error = f"error: learner process {failing} of 2 failed, and with it the run: ZeroDivisionError: before update 4"
    assert error in ended[1 - failing][2].splitlines()
