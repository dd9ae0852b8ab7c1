"""Env steps and time until training reaches a return, against stable-baselines3 on the same task."""

import dataclasses
import itertools
import json
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from envpool_bridge.errors import UserError
from jaxsrl.bench.rivals.sb3_ppo import EPISODES
from jaxsrl.bench.turns import take_turns
from jaxsrl.machine.bound_command import bound_command
from jaxsrl.machine.python_command import jaxsrl_command
from jaxsrl.machine.run_tasks import Process, Task, start_here, stop_processes
from jaxsrl.metrics.record_file import ELAPSED, RETURN, RecordFile
from jaxsrl.terminal.progress import show_line

TaskName: TypeAlias = Literal["cartpole", "lunar-lander", "half-cheetah"]
Run: TypeAlias = dict[str, Any]
_SCRIPT = Path(__file__).parent / "rivals" / "sb3_ppo.py"
_POLL_SECONDS = 0.02
_MEASURES = ("env_steps", "seconds", "training_seconds")


@dataclasses.dataclass(frozen=True)
class LearnTask:
    """Task of both contenders.

    Attributes:
        env_id: environment.
        threshold: mean return of the last 100 training episodes.
        experiment: name of our experiment.
        env_steps: Env steps of our run, if it does not reach the threshold before.
    """

    env_id: str
    threshold: float
    experiment: str
    env_steps: int


TASKS: dict[TaskName, LearnTask] = {
    "cartpole": LearnTask("CartPole-v1", 475.0, "ppo_cartpole", 500_000),
    "lunar-lander": LearnTask("LunarLander-v3", 200.0, "ppo", 1_000_000),
    "half-cheetah": LearnTask("HalfCheetah-v5", 2000.0, "ppo", 1_000_000),
}


def bench_learn(
    sb3_python: Path,
    task: TaskName = "cartpole",
    seeds: int = 3,
    threshold: float | None = None,
    experiment: str = "",
    flags: str = "",
    limit_seconds: float = 7200.0,
) -> dict[str, Any]:
    """Measures PPO against stable-baselines3 with the settings of rl-baselines3-zoo, one run each in turn for every seed.

    A run ends when the mean return of its last 100 training episodes passes the threshold. Every run is a process of its own, which
    compiles its programs unless `JAX_COMPILATION_CACHE_DIR` is set.

    Args:
        sb3_python: interpreter of an environment with stable-baselines3 and the task's packages.
        task: environment, with its threshold.
        seeds: runs of each contender.
        threshold: mean return; None for the task's.
        experiment: ours; "" for the task's.
        flags: further flags of our experiment.
        limit_seconds: Limit, in seconds, of one run.

    Returns:
        `runs` has one row per run: contender, seed, env_steps, seconds since the process started, training_seconds since training
        started; the numbers are null below the threshold. `sb3_over_jaxsrl` has, for each of these numbers, the median, least and
        largest ratio over the seeds that both reached.

    Raises:
        UserError: If the interpreter does not exist, or a run failed.
    """
    if not sb3_python.is_file():
        raise UserError(f"--sb3-python: expected a Python interpreter with stable-baselines3, got {sb3_python}")
    settings = TASKS[task]
    settings = dataclasses.replace(
        settings,
        threshold=settings.threshold if threshold is None else threshold,
        experiment=experiment or settings.experiment,
    )
    ours, rivals, own = itertools.count(), itertools.count(), shlex.split(flags)
    runs = take_turns(
        {
            "jaxsrl": lambda: _show("jaxsrl", learn_with_jaxsrl(settings, next(ours), own, limit_seconds)),
            "sb3": lambda: _show("sb3", learn_with_sb3(sb3_python, settings, next(rivals), limit_seconds)),
        },
        seeds,
    )
    rows = [
        {"contender": contender, "seed": seed, **run}
        for seed, pair in enumerate(zip(*runs.values(), strict=True))
        for contender, run in zip(runs, pair, strict=True)
    ]
    return {
        "env_id": settings.env_id,
        "threshold": settings.threshold,
        "experiment": settings.experiment,
        "runs": rows,
        "sb3_over_jaxsrl": compare_runs(runs["jaxsrl"], runs["sb3"]),
    }


def _show(contender: str, run: Run) -> Run:
    """Writes the result of a run to stderr as soon as it ends, since all runs together may take hours; returns it."""
    show_line(f"{contender}: " + ", ".join(f"{name} {value}" for name, value in run.items()))
    return run


def compare_runs(ours: Sequence[Run], rivals: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns a row per measure: median, least and largest ratio of the rival's number to ours over the seeds that both reached."""
    reached = [pair for pair in zip(ours, rivals, strict=True) if all(run["env_steps"] is not None for run in pair)]
    rows: list[dict[str, Any]] = []
    for measure in _MEASURES:
        ratios = [rival[measure] / own[measure] for own, rival in reached]
        row = {"median": statistics.median(ratios), "least": min(ratios), "largest": max(ratios)} if ratios else {}
        rows.append({"measure": measure, "seeds": len(ratios), **row})
    return rows


def learn_with_sb3(python: Path, task: LearnTask, seed: int, limit_seconds: float) -> Run:
    """Returns env_steps, seconds and training_seconds of one run of stable-baselines3, and its version.

    Raises:
        UserError: If the run failed, or took too long.
    """
    values = {"env_id": task.env_id, "seed": seed, "threshold": task.threshold, "started": time.time()}
    command = bound_command([str(python), "-I", str(_SCRIPT), json.dumps(values)])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"stable-baselines3 did not end within {limit_seconds:g} s: raise --limit-seconds") from error
    if done.returncode:
        raise UserError(
            f"stable-baselines3 in {python} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def learn_with_jaxsrl(task: LearnTask, seed: int, flags: Sequence[str], limit_seconds: float) -> Run:
    """Returns env_steps, seconds and training_seconds of one `jaxsrl train`, which is stopped at the threshold.

    Raises:
        UserError: If the run failed, or took too long.
    """
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory, "output.txt")
        command = jaxsrl_command("train", task.experiment, "--env.id", task.env_id)
        command += ["--run.total-env-steps", str(task.env_steps), "--metrics.interval-seconds", "0.05"]
        command += ["--metrics.no-tensorboard", "--eval.final-episodes", "0", *flags, "--run.seed", str(seed)]
        command += ["--run.directory", directory, "--run.name", "run"]
        started = time.monotonic()
        process = start_here(Task("jaxsrl", command, output))
        try:
            result = _watch(process, Path(directory, "run", "metrics.jsonl"), task.threshold, started, limit_seconds)
            if result is None and process.poll():
                lines = output.read_text().strip().splitlines() or ["no message"]
                raise UserError(f"jaxsrl train {task.experiment} failed: {lines[-1]}")
        finally:
            stop_processes([process], "SIGTERM", show_line)
    return result or dict.fromkeys(_MEASURES)


def _watch(process: Process, path: Path, threshold: float, started: float, limit_seconds: float) -> Run | None:
    """Returns the first record at the threshold as soon as it is written; None if the run ends before."""
    records, seen = RecordFile(path), 0
    while True:
        has_ended = process.poll() is not None
        records.refresh()
        seconds = time.monotonic() - started
        columns = records.columns
        for row in range(seen, records.num_rows if RETURN in columns else 0):
            if columns["episode/count"][row] >= EPISODES and columns[RETURN][row] >= threshold:
                steps, training = int(columns["env_steps"][row]), columns[ELAPSED][row]
                return {"env_steps": steps, "seconds": seconds, "training_seconds": training}
        # The newest record is read again: the run's last one may be merged into it.
        seen = max(0, records.num_rows - 1)
        if has_ended:
            return None
        if seconds > limit_seconds:
            raise UserError(f"jaxsrl did not end within {limit_seconds:g} s: raise --limit-seconds")
        time.sleep(_POLL_SECONDS)
