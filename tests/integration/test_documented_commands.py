"""Every command and benchmark, and every command line of README.md and the documentation, in both output forms.

What is tried comes from the command line itself and from the pages: a new command or benchmark without settings here fails.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import jaxsrl.bench.command
import jaxsrl.bench.learn
import jaxsrl.bench.plans
import jaxsrl.cli.main
from jaxsrl.bench.command import BENCHMARKS, BenchCommand, load_benchmark
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.cli.main import COMMANDS, parse
from jaxsrl.experiment import load_experiment
from tests.integration.test_cli import save_run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORD = {"update": 1, "env_steps": 4096, "frames": 4096, "wall_seconds": 2.0, "episode/return_mean": 20.0}

# Flags that make a benchmark short, and keys that its JSON documents.
SHORT = {
    "pool": "--workers 1 --envs-per-worker 2 --seconds 0.2 --rounds 2",
    "train": "--workers 1 --num-envs 8 --env-steps 768",
    "plans": "--env-steps 8192 --num-envs 8",
    "on-device": "--num-envs 4 --seconds 0.1",
    "cluster": "--hosts 1 --workers 1 --num-envs 8 --env-steps 2048 --rounds 1",
    "gpu": "",
    "learn": f"--sb3-python {sys.executable} --seeds 1",
}
KEYS = {
    "pool": {"env_steps_per_second", "ratio_to_limit", "ratio_to_async_vector_env", "rounds"},
    "train": {"env_steps_per_second", "wait_share_learner", "inference_latency_ms", "slots_bytes"},
    "learn": {"runs", "sb3_over_jaxsrl", "threshold"},
    "plans": {"plans"},
    "on-device": {"sizes", "baselines"},
    "cluster": {"ray_over_local", "local_env_steps_per_second"},
}
FORKS = {"pool"}  # in the process of the command, which a process that has started jax must not do
SLOW = {
    "train",
    "pool",
    "plans",
    "cluster",
    "on-device",
}
TRAINED = {"env_steps_per_second": 5.0, "policy_lag_mean": 0.5, "policy_lag_max": 1.0, "learner_idle_share": 0.25}
TRAINED |= {"peak_memory_bytes": 7, "slots_bytes": 3, "platform": "cpu", "records": 2, "inference_latency_ms": 0.5}
LEARNED = {"env_steps": 5, "seconds": 2.0, "training_seconds": 1.0}
# Results of the benchmarks that start long runs, or compile for long, with which the fast suite looks at what is printed.
STUBS = {
    "plans": [(jaxsrl.bench.plans, "run_apart", lambda settings: {**TRAINED, "plan": "x", "workers": 2})],
    "learn": [
        (jaxsrl.bench.learn, "learn_with_jaxsrl", lambda *_: LEARNED),
        (jaxsrl.bench.learn, "learn_with_sb3", lambda *_: {**LEARNED, "version": "x"}),
    ],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A directory with runs of the names that the pages use, as training leaves them."""
    place = tmp_path_factory.mktemp("place")
    (place / "runs").mkdir()
    for name in ("ppo_cartpole_seed0", "ppo_cartpole_seed1"):
        run = save_run(place / "runs" / name, (3, 7))
        (run / "metrics.jsonl").write_text(json.dumps(RECORD) + "\n" + json.dumps({**RECORD, "update": 2}) + "\n")
    (place / "runs" / "tune_ppo_cartpole").mkdir()
    (place / "runs" / "tune_ppo_cartpole" / "best.yaml").write_text("agent: {learning_rate: 1e-3}\n")
    return place / "runs"


@pytest.fixture
def here(runs, monkeypatch, tmp_path):
    """Changes to a directory with those runs."""
    (tmp_path / "runs").symlink_to(runs)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.yaml").write_text("run: {seed: 3}\n")


def printed(capsys, *arguments):
    jaxsrl.cli.main.main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def printed_apart(*arguments):
    """What a command prints in a process of its own."""
    command = [
        sys.executable,
        "-c",
        "import sys, jaxsrl.cli.main; jaxsrl.cli.main.main(sys.argv[1:])",
        *map(str, arguments),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def printed_by_benchmark(capsys, bench, *arguments):
    return printed_apart(*arguments) if bench in FORKS else printed(capsys, *arguments)


def assert_plain(text):
    """Fails unless a text is for people: no Python or JSON syntax, no names of fields."""
    assert text.strip()
    assert not re.search(r"[{}]|'\w+':|\bNone\b|\bTrue\b|\bFalse\b|array\(|\b\w+_per_second\b", text), text


def read_json(text):
    """The one JSON object that a command prints; numbers must be JSON's."""
    assert text.count("\n") == 1

    def not_a_number(name):
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(text, parse_constant=not_a_number)
    assert isinstance(found, dict)
    return found


def in_both_forms(capsys, monkeypatch, bench):
    """Measures once, and prints twice; a benchmark of `FORKS` measures twice."""
    benchmark, results = load_benchmark(bench), []

    @functools.wraps(benchmark)
    def measure_once(**settings):
        return results[0] if results else results.append(benchmark(**settings)) or results[0]

    monkeypatch.setattr(jaxsrl.bench.command, "load_benchmark", lambda name: measure_once)
    arguments = ["bench", bench, *SHORT[bench].split()]
    found = read_json(printed_by_benchmark(capsys, bench, *arguments, "--json"))
    assert set(found) >= KEYS[bench]
    text = printed_by_benchmark(capsys, bench, *arguments)
    assert_plain(text)
    assert re.search(r"steps per|searches per|games per|\(ms\)|env steps", text), text
    assert f"bench {bench}" in text


def test_every_benchmark_is_tested():
    assert set(SHORT) == set(BENCHMARKS)
    assert set(KEYS) == set(BENCHMARKS) - {"gpu"}


@pytest.mark.parametrize(
    "bench",
    [
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.timeout(1200)] if name in SLOW else [])
        for name in BENCHMARKS
        # "learn" needs an interpreter with stable-baselines3, and "arena" a run of a game.
        if name not in ("gpu", "learn", "arena")
    ],
)
def test_every_benchmark_prints_in_both_forms(capsys, monkeypatch, bench):
    if bench == "cluster":
        pytest.importorskip("ray")
    in_both_forms(capsys, monkeypatch, bench)


@pytest.mark.parametrize("bench", STUBS)
def test_long_benchmarks_print_text_and_json(capsys, monkeypatch, bench):
    for module, name, stub in STUBS[bench]:
        monkeypatch.setattr(module, name, stub)
    monkeypatch.setattr(jaxsrl.bench.plans, "local_devices", lambda: ("cpu", 1, "cpu"))
    in_both_forms(capsys, monkeypatch, bench)


def test_the_benchmark_of_the_device_prints_in_both_forms(capsys, monkeypatch):
    from jaxsrl.bench import on_device

    monkeypatch.setattr(on_device, "_contenders", lambda *_: {"jaxsrl": lambda updates: None, "flat_ppo": abs})
    monkeypatch.setattr(on_device, "_updates_a_turn", lambda advance: 1)
    in_both_forms(capsys, monkeypatch, "on-device")


FORMS = {
    "train": [["train", "--list"]],
    "runs": [["runs"]],
    "plot": [["plot", "runs", "--out", "plot.svg"]],
    "evaluate": [
        ["evaluate", "runs/ppo_cartpole_seed0", "--episodes", "1"],
        ["evaluate", "runs/ppo_cartpole_seed0", "--episodes", "1", "--all", "--out", "curve.svg"],
    ],
    "inspect": [
        ["inspect", "runs/ppo_cartpole_seed0"],
        ["inspect", "runs/ppo_cartpole_seed0", "--all"],
    ],
    "plan": [["plan", "ppo_cartpole"], ["plan", "ppo_cartpole", "--plan", "decoupled", "--gpus", "2"]],
    "doctor": [["doctor", "--runs", "runs"]],
}
ELSEWHERE = {
    "view": "test_view.py",
    "bench": "above",
    "new": "test_commands_new.py",
    "results": "test_commands_results.py",
    "config": "test_config_files.py",
    "models": "test_documented_models.py",
    "export": "test_export.py",
    "control": "test_control.py",
    "arena": "test_arena.py",
    "population": "test_population.py",
    "psro": "test_psro.py",
    "league": "test_league.py",
    "record": "test_commands_dataset.py",
    "record-sets": "test_record_sets.py",
    "dataset": "test_commands_dataset.py",
    "tune": "test_documented_tune.py",
}


def test_every_command_is_tested():
    assert {*FORMS, *ELSEWHERE} == set(COMMANDS)
    for name, kind in COMMANDS.items():
        has_json = "json" in {field.name for field in dataclasses.fields(kind)}
        own = ("arena", "population", "psro", "league", "models", "tune", "control", "record", "record-sets", "dataset")
        assert has_json == (name in FORMS or name in own)


@pytest.mark.parametrize("arguments", [line for lines in FORMS.values() for line in lines], ids=" ".join)
def test_every_command_prints_in_both_forms(capsys, here, arguments):
    # The doctor's exit status may be 1: this machine may have troubles.
    with contextlib.suppress(SystemExit) if arguments[0] == "doctor" else contextlib.nullcontext():
        jaxsrl.cli.main.main([*arguments, "--json"])
    read_json(capsys.readouterr().out)
    with contextlib.suppress(SystemExit) if arguments[0] == "doctor" else contextlib.nullcontext():
        jaxsrl.cli.main.main(arguments)
    text = capsys.readouterr().out
    assert text.strip()
    if arguments[0] != "inspect":  # which shows a configuration as it was written
        assert_plain(text)


def documented_lines():
    """Command lines of the pages, without comments and prompts; lines that end in a backslash are joined."""
    found = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))
        for line in [line for block in blocks for line in block.splitlines()] + inline:
            match = re.match(rf"^(?:\$ )?(?:\.venv/bin/)?jaxsrl +((?:{'|'.join(COMMANDS)})\b.*)$", line.strip())
            if match is not None:
                arguments = shlex.split(match[1], comments=True)
                found.setdefault(tuple(arguments), (page.name, arguments))
    return list(found.values())


LINES = documented_lines()


def test_the_pages_show_commands():
    assert {arguments[0] for _, arguments in LINES} == set(COMMANDS)
    assert len(LINES) > 60


@pytest.mark.parametrize(("page", "arguments"), LINES, ids=[f"{page}: {' '.join(line)}" for page, line in LINES])
def test_every_documented_command_line_can_be_read(here, page, arguments):
    text = " ".join(arguments)
    is_pattern = re.search(r"[\[…]|\.\.\.|FILE|EXPERIMENT", text) or text in {*COMMANDS, "evaluate --partial"}
    if is_pattern or "--help" in arguments:
        with pytest.raises(SystemExit) as ended:
            parse([arguments[0], "--help"])
        assert ended.value.code == 0
        return
    command = parse(arguments)
    if isinstance(command, BenchCommand):
        command.parse_flags()
        return
    flags = list(getattr(command, "flags", ()))
    if "LunarLander-v3" in arguments:
        pytest.importorskip("Box2D")
    if flags:
        load_experiment(find_experiment(command.experiment), flags)


BENCH_LINES = [
    (page, line) for page, line in LINES if line[0] == "bench" and len(line) > 1 and "..." not in " ".join(line)
]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("page", "arguments"), BENCH_LINES, ids=[" ".join(line) for _, line in BENCH_LINES])
def test_every_documented_benchmark_runs_with_short_settings(capsys, page, arguments):
    bench = arguments[1]
    if bench in ("gpu", "learn", "arena", "--help"):
        return  # test_cli.py, test_arena.py; an interpreter with stable-baselines3 is needed
    if bench == "cluster":
        pytest.importorskip("ray")
    if "atari" in " ".join(arguments):
        pytest.importorskip("ale_py")
    if "envpool" in arguments:
        pytest.importorskip("envpool")
    if "--awake" in arguments and not os.access("/dev/cpu_dma_latency", os.W_OK):
        pytest.skip("cores of this machine may not be kept awake by this user")
    found = read_json(printed_by_benchmark(capsys, bench, *arguments, *SHORT[bench].split(), "--json"))
    assert set(found) >= KEYS[bench] - {"ratio_to_limit", "ratio_to_async_vector_env", "vector"}
