"""Seeds trained in one program are single runs, to the bit; and seeds as processes."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agents.dqn import DQNConfig
from agents.networks.config import NetworkConfig
from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.config.curriculum import CurriculumConfig
from jaxsrl.config.parts import CheckpointConfig, EvalConfig, MetricsConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import Experiment, cli, parse_flags
from jaxsrl.many_seeds import train_together
from jaxsrl.many_seeds.members import member_experiments
from jaxsrl.many_seeds.processes import train_in_processes
from jaxsrl.training.callbacks import Callback

CHECKOUT = Path(__file__).resolve().parents[2]
SEEDS, UPDATES, EVERY, STEPS = (5, 6, 7), 48, 8, 32
TIMED = "episodes/recent"  # sums over dispatches, whose sizes follow the speed of the machine
EXPERIMENT = Experiment(
    env=EnvConfig("CartPole-v1", suite="jax", kwargs='{"max_steps": 40}'),
    agent=PPOConfig(
        learning_rate=3e-3, learning_rate_schedule=ScheduleConfig("linear"), num_epochs=2, num_minibatches=2
    ),
    network=NetworkConfig(hidden_sizes=(16,)),
    run=RunConfig(
        name="many",
        plan="device_only",
        seed=SEEDS[0],
        num_envs=4,
        rollout_length=STEPS // 4,
        total_env_steps=UPDATES * STEPS,
        checkpoint=CheckpointConfig(interval_updates=EVERY, max_to_keep=3),
        metrics=MetricsConfig(tensorboard=False),
        eval=EvalConfig(final_episodes=2),
    ),
)
PROGRAM = """
import dataclasses, sys
from jaxsrl.experiment import Experiment, cli
from tests.integration.test_many_seeds import EXPERIMENT
if __name__ == "__main__":
    cli(EXPERIMENT)
"""


def with_run(**changes) -> Experiment:
    run = dataclasses.replace(EXPERIMENT.run, **changes)
    return dataclasses.replace(
        EXPERIMENT, run=run if run.seeds > 1 else dataclasses.replace(run, name=f"many_seed{run.seed}")
    )


def run_path(directory, seed) -> Path:
    return next(Path(directory).glob(f"*_seed{seed}"), Path(directory) / "none")


def newest(path) -> tuple[int, dict[str, np.ndarray]]:
    step, arrays, *_ = CheckpointStore(path / "checkpoints", 3).restore_newest()
    return step, arrays


def assert_same_run(path, expected) -> None:
    (step, arrays), (wanted_step, wanted) = newest(path), newest(expected)
    assert step == wanted_step == UPDATES
    assert arrays.keys() == wanted.keys()
    for name in arrays.keys() - {TIMED}:
        np.testing.assert_array_equal(arrays[name], wanted[name], err_msg=name)


@pytest.fixture(scope="module")
def single_runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("single")
    for seed in SEEDS:
        with_run(directory=str(directory), seed=seed).train(quiet=True)
    return directory


def command(directory, *flags):
    program = directory / "program.py"
    program.write_text(PROGRAM)
    return [sys.executable, str(program), "--run.directory", str(directory), *flags]


def start(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(condition, process) -> None:
    deadline = time.monotonic() + 200.0
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def saved_updates(path) -> list[int]:
    checkpoints = path / "checkpoints"
    names = os.listdir(checkpoints) if checkpoints.exists() else []
    return sorted(int(name) for name in names if name.isdecimal())


def test_seeds_in_one_program_equal_single_runs(single_runs, tmp_path):
    reports = with_run(directory=str(tmp_path), seeds=3).train_seeds(quiet=True)
    assert [report.directory for report in reports] == [run_path(tmp_path, seed) for seed in SEEDS]
    for seed, report in zip(SEEDS, reports, strict=True):
        path, single = run_path(tmp_path, seed), run_path(single_runs, seed)
        assert_same_run(path, single)
        config, wanted = (json.loads((each / "config.json").read_text()) for each in (path, single))
        assert config["experiment"]["run"].pop("directory") != wanted["experiment"]["run"].pop("directory")
        assert config == wanted
        assert (path / "eval.json").read_text() == (single / "eval.json").read_text()
        records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        assert records[-1]["update"] == report.num_updates == UPDATES
        assert records[-1]["speed/env_steps_per_second"] > 0.0


class HalvesOneRate(Callback):
    """Halves the learning rate of one seed after its 16th update."""

    def on_update(self, run):
        if (run.config.seed, run.num_updates) == (SEEDS[1], 2 * EVERY):
            run.set_value("learning_rate_factor", 0.5)


@pytest.mark.slow
def test_a_value_of_one_seed_changes_alone(single_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(train_together, "make_callbacks", lambda *arguments: [HalvesOneRate()])
    changed = with_run(directory=str(tmp_path / "single"), seed=SEEDS[1]).train(quiet=True, callbacks=[HalvesOneRate()])
    with_run(directory=str(tmp_path), seeds=3).train_seeds(quiet=True)
    for seed in SEEDS:
        single = changed.directory if seed == SEEDS[1] else run_path(single_runs, seed)
        assert_same_run(run_path(tmp_path, seed), single)


def test_one_seed_alone_cannot_pause(tmp_path, monkeypatch):
    pauses = []

    class Pause(Callback):
        def on_update(self, run):
            if not pauses:
                with pytest.raises(UserError, match="the seeds of one program cannot pause alone"):
                    run.validate_control("pause")
                pauses.append(run.config.seed)

    monkeypatch.setattr(train_together, "make_callbacks", lambda *arguments: [Pause()])
    with_run(directory=str(tmp_path), seeds=2, total_env_steps=STEPS).train_seeds(quiet=True)
    assert pauses


def test_killed_seeds_resume_from_different_updates(single_runs, tmp_path):
    process = start(*command(tmp_path, "--run.seeds", "3"))
    try:
        wait_until(lambda: all(len(saved_updates(run_path(tmp_path, seed))) > 1 for seed in SEEDS), process)
    finally:
        process.kill()
        process.communicate()
    # As if the process had been killed after only some seeds had saved.
    behind = run_path(tmp_path, SEEDS[1])
    shutil.rmtree(behind / "checkpoints" / str(saved_updates(behind)[-1]))
    assert len({saved_updates(run_path(tmp_path, seed))[-1] for seed in SEEDS}) > 1
    reports = with_run(directory=str(tmp_path), seeds=3).train_seeds(quiet=True)
    assert [report.num_updates for report in reports] == [UPDATES] * 3
    for seed in SEEDS:
        assert_same_run(run_path(tmp_path, seed), run_path(single_runs, seed))


def test_a_signal_saves_all_seeds(tmp_path):
    long = ["--run.total-env-steps", str(100_000_000), "--checkpoint.interval-updates", "0"]
    process = start(*command(tmp_path, "--run.seeds", "3", *long))
    try:
        wait_until(lambda: all((run_path(tmp_path, seed) / "metrics.jsonl").exists() for seed in SEEDS), process)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=200)[0]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert output.count("stopped by SIGTERM") == 3
    for seed in SEEDS:
        log = (run_path(tmp_path, seed) / "log.txt").read_text()
        assert f"checkpoint at update {saved_updates(run_path(tmp_path, seed))[-1]}\n" in log


@pytest.mark.slow
def test_seeds_with_values_of_their_own_equal_single_runs(tmp_path):
    schedule = ScheduleConfig("linear", end=0.3, warmup=0.2)
    agent = dataclasses.replace(EXPERIMENT.agent, learning_rate_schedule=schedule, entropy_coef_schedule=schedule)
    values = {"seed_learning_rates": (1e-4, 3.3e-3), "seed_entropy_coefs": (0.1, 0.013)}
    many = dataclasses.replace(with_run(directory=str(tmp_path), seeds=2, **values), agent=agent)
    many.train_seeds(quiet=True)
    for seed, learning_rate, entropy_coef in ((5, 1e-4, 0.1), (6, 3.3e-3, 0.013)):
        own = dataclasses.replace(agent, learning_rate=learning_rate, entropy_coef=entropy_coef)
        single = dataclasses.replace(with_run(directory=str(tmp_path / "single"), seed=seed), agent=own)
        expected = single.train(quiet=True).directory
        assert_same_run(run_path(tmp_path, seed), expected)
        config, wanted = (
            json.loads((path / "config.json").read_text()) for path in (run_path(tmp_path, seed), expected)
        )
        assert config["experiment"]["run"]["name"] == f"many_{learning_rate=}_{entropy_coef=}_seed{seed}"
        for name in ("directory", "name"):
            config["experiment"]["run"][name] = wanted["experiment"]["run"][name]
        assert config == wanted
    # The complete seed does not start again, so the other one is the program's first member.
    shutil.rmtree(run_path(tmp_path, 6) / "checkpoints" / str(UPDATES))
    many.train_seeds(quiet=True)
    assert_same_run(run_path(tmp_path, 6), expected)


@pytest.mark.slow
def test_seeds_with_a_target_stop_at_their_own_updates(tmp_path):
    reports = with_run(directory=str(tmp_path), seeds=3, target_return=30.0, total_env_steps=40_000).train_seeds(
        quiet=True
    )
    updates = [report.num_updates for report in reports]
    assert len(set(updates)) > 1
    assert all("training return" in report.stop_reason for report in reports)


def test_a_failed_seed_ends_the_others_with_checkpoints(tmp_path, monkeypatch):
    from jaxsrl.training.keep_models import KeepModels

    def fail(self, run):
        if run.config.seed == SEEDS[1]:
            raise RuntimeError("seed 6 fails")

    monkeypatch.setattr(KeepModels, "on_update", fail)
    config = CheckpointConfig(interval_updates=0, keep_every=STEPS)
    with pytest.raises(RuntimeError, match="seed 6 fails"):
        with_run(directory=str(tmp_path), seeds=3, checkpoint=config).train_seeds(quiet=True)
    for seed in SEEDS:
        assert saved_updates(run_path(tmp_path, seed))
    assert "another seed failed" in (run_path(tmp_path, SEEDS[2]) / "log.txt").read_text()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"plan": "serial"}, "one program"),
        ({"metrics": MetricsConfig(prometheus_port=9000)}, "prometheus-port"),
        ({"record": "steps"}, "run.record needs all steps"),
        ({"curriculum": CurriculumConfig(returns=(10.0,)), "eval": EvalConfig(every=STEPS)}, "a curriculum changes"),
    ],
)
def test_seeds_reject_what_one_program_cannot_do(tmp_path, changes, problem):
    with pytest.raises(UserError, match=problem):
        with_run(directory=str(tmp_path / "runs"), seeds=2, **changes).train_seeds(quiet=True)
    assert not (tmp_path / "runs").exists()


def test_a_run_of_one_seed_rejects_several(tmp_path):
    with pytest.raises(UserError, match=r"run.seeds 2: use Experiment.train_seeds"):
        with_run(directory=str(tmp_path), seeds=2).train(quiet=True)


# A stand-in for a run: it writes the flags and cores that it got, and stops as a run does.
CHILD = """
import json, os, pathlib, signal, sys, time
flags = dict(zip(sys.argv[2::2], sys.argv[3::2]))
seed = int(flags["--run.seed"])
path = pathlib.Path(sys.argv[1]) / f"{seed}.json"
def stop(number, frame):
    path.write_text("saved"); sys.exit(128 + number)
signal.signal(signal.SIGTERM, stop)
path.write_text(json.dumps([flags, sorted(os.sched_getaffinity(0)), time.monotonic()]))
if seed == 9:
    sys.exit(2)
time.sleep(60 if seed > 9 else 0.3)
"""


def child(directory):
    return [sys.executable, "-c", CHILD, str(directory)]


def test_seeds_as_processes_run_in_turn(tmp_path):
    lines = []
    config = RunConfig(name="mine", seed=3, seeds=2)
    assert train_in_processes(config, child(tmp_path), lines.append) == 0
    first, second = (json.loads((tmp_path / f"{seed}.json").read_text()) for seed in (3, 4))
    assert first[0]["--run.name"] == "mine_seed3"
    assert second[0] == {"--run.seeds": "1", "--run.seeds-at-once": "1", "--run.seed": "4", "--run.name": "mine_seed4"}
    assert second[2] - first[2] >= 0.3
    assert lines == ["seed 3 starts", "seed 3 is complete", "seed 4 starts", "seed 4 is complete"]


def test_seeds_as_processes_get_their_own_values(tmp_path):
    asked = ["--run.seeds", "2", "--run.seed-learning-rates", "1e-5", "3.3e-3", "--run.seed-entropy-coefs", "0", "0.1"]
    experiment = parse_flags(EXPERIMENT, asked)
    write = "import json, pathlib, sys; pathlib.Path(sys.argv[1], sys.argv[-1]).write_text(json.dumps(sys.argv[2:]))"
    experiment = dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, name="mine"))
    assert train_in_processes(experiment.run, [sys.executable, "-c", write, str(tmp_path)], lambda line: None) == 0
    files = sorted(tmp_path.iterdir())
    parsed = [parse_flags(EXPERIMENT, [*asked, *json.loads(file.read_text())]) for file in files]
    assert parsed == member_experiments(experiment)
    assert [(own.agent.learning_rate, own.agent.entropy_coef) for own in parsed] == [(1e-5, 0.0), (3.3e-3, 0.1)]


@pytest.mark.parametrize("plan", ["device_only", "serial"])
@pytest.mark.parametrize(
    ("agent", "flags", "problem"),
    [
        (DQNConfig(), ["--run.seed-entropy-coefs", "0.1", "0.2"], "option entropy_coef, got DQNConfig"),
        (PPOConfig(), ["--run.seed-learning-rates", "0.1", "-0.1"], "learning_rate must be positive: got -0.1"),
        (PPOConfig(), ["--run.seed-learning-rates", "0.1"], "got 1 with 2 of them"),
    ],
)
def test_values_of_seeds_are_rejected_before_a_start(plan, agent, flags, problem, tmp_path, capsys):
    experiment = dataclasses.replace(EXPERIMENT, agent=agent)
    with pytest.raises(SystemExit) as stopped:
        cli(experiment, ["--run.seeds", "2", "--plan", plan, "--run.directory", str(tmp_path / "runs"), *flags])
    assert stopped.value.code == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_seeds_as_processes_do_not_record_into_one_dataset(tmp_path):
    config = RunConfig(seeds=2, record=str(tmp_path / "steps"))
    with pytest.raises(UserError, match="run.record is the dataset of one run: got .*steps with 2 seeds"):
        train_in_processes(config, child(tmp_path), lambda line: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_seeds_at_once_have_cores_of_their_own(tmp_path):
    config = RunConfig(directory=str(tmp_path), seeds=2, seeds_at_once=2)
    assert train_in_processes(config, child(tmp_path), lambda line: None) == 0
    (_, ours, _), (_, theirs, _) = (json.loads((tmp_path / f"{seed}.json").read_text()) for seed in (0, 1))
    assert min(len(ours), len(theirs)) > 0
    assert not set(ours) & set(theirs)
    assert set(ours) | set(theirs) == os.sched_getaffinity(0)


def test_a_failed_process_ends_the_seeds(tmp_path):
    config = RunConfig(directory=str(tmp_path), seed=9, seeds=3)
    assert train_in_processes(config, child(tmp_path), lambda line: None) == 2
    assert not (tmp_path / "10.json").exists()


def test_seeds_as_processes_pass_a_signal_on(tmp_path):
    code = (
        "import sys; from jaxsrl.config.run_config import RunConfig; from jaxsrl.many_seeds.processes import *\n"
        "sys.exit(train_in_processes(RunConfig(seed=10, seeds=2), sys.argv[1:], print))"
    )
    process = start(sys.executable, "-c", code, *child(tmp_path))
    try:
        wait_until((tmp_path / "10.json").exists, process)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "10.json").read_text() == "saved"
    assert not (tmp_path / "11.json").exists()


@pytest.mark.slow
def test_seeds_of_a_host_environment_train_in_turn(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    flags = ["--env.suite", "gymnasium", "--env.kwargs", "{}", "--plan", "serial", "--run.total-env-steps", "256"]
    process = start(*command(tmp_path, "--run.seeds", "2", *flags))
    output = process.communicate(timeout=400)[0]
    assert process.returncode == 0, output
    for seed in SEEDS[:2]:
        config = json.loads((run_path(tmp_path, seed) / "config.json").read_text())
        assert config["experiment"]["run"]["seed"] == seed
        assert newest(run_path(tmp_path, seed))[0] == 8
