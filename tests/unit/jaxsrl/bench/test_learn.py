"""Time to a return: the rows and ratios of `bench learn`, with stand-ins for both contenders."""

import json
import subprocess
import sys
import time
import types

import numpy as np
import pytest

import jaxsrl.bench.learn
from envpool_bridge.errors import UserError
from jaxsrl.bench.learn import TASKS, LearnTask, bench_learn, compare_runs, learn_with_jaxsrl, learn_with_sb3
from jaxsrl.bench.rivals import sb3_ppo

TASK = LearnTask("CartPole-v1", 475.0, "ppo_cartpole", 1000)


def run(env_steps, seconds=1.0):
    return {"env_steps": env_steps, "seconds": seconds, "training_seconds": seconds / 2}


def test_compare_runs_uses_seeds_that_both_reached():
    ours = [run(100, 1.0), run(100, 2.0), run(None), run(200, 4.0)]
    rivals = [run(300, 3.0), run(50, 20.0), run(1, 1.0), run(800, 8.0)]
    assert compare_runs(ours, rivals) == [
        {"measure": "env_steps", "seeds": 3, "median": 3.0, "least": 0.5, "largest": 4.0},
        {"measure": "seconds", "seeds": 3, "median": 3.0, "least": 2.0, "largest": 10.0},
        {"measure": "training_seconds", "seeds": 3, "median": 3.0, "least": 2.0, "largest": 10.0},
    ]
    assert compare_runs(ours[2:3], rivals[2:3])[0] == {"measure": "env_steps", "seeds": 0}


def test_bench_learn_alternates_contenders_over_seeds(monkeypatch, capsys):
    calls = []

    def learn(name):
        def stand_in(*arguments):
            seed = arguments[-2] if name == "sb3" else arguments[1]
            calls.append((name, seed))
            return run(10 + seed)

        return stand_in

    monkeypatch.setattr(jaxsrl.bench.learn, "learn_with_sb3", learn("sb3"))
    monkeypatch.setattr(jaxsrl.bench.learn, "learn_with_jaxsrl", learn("jaxsrl"))
    result = bench_learn(types.SimpleNamespace(is_file=lambda: True), seeds=2, threshold=100.0)
    assert calls == [("jaxsrl", 0), ("sb3", 0), ("jaxsrl", 1), ("sb3", 1)]
    assert [(row["contender"], row["seed"], row["env_steps"]) for row in result["runs"]] == [
        ("jaxsrl", 0, 10), ("sb3", 0, 10), ("jaxsrl", 1, 11), ("sb3", 1, 11),
    ]  # fmt: skip
    assert (result["env_id"], result["threshold"]) == ("CartPole-v1", 100.0)
    progress = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in progress] == [contender for contender, _ in calls]
    assert "env_steps 11" in progress[-1]
    assert json.loads(json.dumps(result)) == result


def test_bench_learn_rejects_a_missing_interpreter(tmp_path):
    with pytest.raises(UserError, match="--sb3-python: expected a Python interpreter"):
        bench_learn(tmp_path / "python")


def stand_in(tmp_path, text):
    path = tmp_path / "program"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_learn_with_sb3_sends_settings_and_reads_the_result(tmp_path):
    program = "import json, sys, time\nvalues = json.loads(sys.argv[3])\nprint('noise')\n"
    program += "print(json.dumps({**values, 'flags': sys.argv[1:2], 'late': time.time() - values['started']}))\n"
    result = learn_with_sb3(stand_in(tmp_path, program), TASK, 7, 60.0)
    assert (result["env_id"], result["seed"], result["threshold"], result["flags"]) == ("CartPole-v1", 7, 475.0, ["-I"])
    assert 0.0 < result["late"] < 60.0


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import sys\nsys.exit('no module named x')\n", "failed: no module named x"),
        ("import time\ntime.sleep(60)\n", "did not end within 2 s"),
    ],
)
def test_learn_with_sb3_reports_failures(tmp_path, program, problem):
    with pytest.raises(UserError, match=problem):
        learn_with_sb3(stand_in(tmp_path, program), TASK, 0, 2.0)


RECORDS = """
import json, sys, time
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
run = Path(sys.argv[sys.argv.index("--run.directory") + 1], "run")
run.mkdir()
with open(run / "metrics.jsonl", "w") as file:
    for update, (count, mean) in enumerate({rows}, 1):
        record = dict(update=update, env_steps=update * 8, wall_seconds=update * 0.25)
        file.write(json.dumps({{**record, "episode/count": count, "episode/return_mean": mean}}) + "\\n")
        file.flush()
time.sleep({sleep})
sys.exit({status})
"""


def learn(tmp_path, monkeypatch, rows, sleep=60, status=0, limit=60.0):
    program = stand_in(tmp_path, RECORDS.format(rows=rows, sleep=sleep, status=status))
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([str(program), *command[command.index("train") :]], **options)
            started.append(self)

    monkeypatch.setattr(jaxsrl.bench.learn.subprocess, "Popen", Popen)
    try:
        return learn_with_jaxsrl(TASK, 3, ["--agent.num-epochs", "2"], limit)
    finally:
        assert started[0].returncode is not None


def test_learn_with_jaxsrl_stops_at_the_threshold(tmp_path, monkeypatch):
    rows = [(50, 490.0), (100, 474.9), (120, 475.0), (140, 500.0)]  # too few episodes, too low, enough
    begin = time.monotonic()
    result = learn(tmp_path, monkeypatch, rows)
    assert (result["env_steps"], result["training_seconds"]) == (24, 0.75)
    assert 0.0 < result["seconds"] < time.monotonic() - begin < 50.0


def test_learn_with_jaxsrl_below_the_threshold_has_no_numbers(tmp_path, monkeypatch):
    result = learn(tmp_path, monkeypatch, [(200, 470.0)], sleep=0)
    assert result == {"env_steps": None, "seconds": None, "training_seconds": None}


def test_learn_with_jaxsrl_reports_failures(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="jaxsrl train ppo_cartpole failed"):
        learn(tmp_path, monkeypatch, [], sleep=0, status=3)


def test_learn_with_jaxsrl_has_a_deadline(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="did not end within 1 s"):
        learn(tmp_path, monkeypatch, [], limit=1.0)


class BaseCallback:
    """The part of the class of stable-baselines3 that the script uses."""

    locals, num_timesteps = None, 0


def fake_sb3(returns, made):
    """Modules of stable-baselines3 whose PPO ends an episode of each environment at every step, with these returns."""

    class PPO:
        def __init__(self, policy, envs, **settings):
            made.update(settings, policy=policy, envs=envs)

        def learn(self, total, callback):
            made["total"] = total
            for step, value in enumerate(returns, 1):
                callback.num_timesteps, callback.locals = step, {"infos": [{}, {"episode": {"r": value}}]}
                if not callback._on_step():
                    return

    envs = types.SimpleNamespace(close=lambda: made.update(closed=True))
    modules = {
        "": {"PPO": PPO, "__version__": "9.9"},
        ".common": {},
        ".common.callbacks": {"BaseCallback": BaseCallback},
        ".common.env_util": {
            "make_vec_env": lambda env_id, count, seed: made.update(env=(env_id, count, seed)) or envs
        },
        ".common.vec_env": {"VecNormalize": lambda envs, gamma: made.update(gamma=gamma) or envs},
    }
    for name, members in modules.items():
        module = types.ModuleType(f"stable_baselines3{name}")
        module.__dict__.update(members)
        yield module.__name__, module


def learn_with_fake(monkeypatch, returns, env_id="CartPole-v1", threshold=5.0):
    made = {}
    for name, module in fake_sb3(returns, made):
        monkeypatch.setitem(sys.modules, name, module)
    return sb3_ppo.learn(env_id, 4, threshold, time.time() - 10.0), made


@pytest.mark.parametrize("seed", range(3))
def test_sb3_script_stops_at_the_mean_of_a_hundred(monkeypatch, seed):
    returns = np.linspace(0.0, 10.0, 400) + np.random.default_rng(seed).normal(size=400)
    result, made = learn_with_fake(monkeypatch, returns.tolist())
    means = np.convolve(returns, np.ones(100) / 100, "valid")
    assert result["env_steps"] == 100 + int(np.argmax(means >= 5.0)) < 400
    assert 10.0 < result["seconds"] < 60.0
    assert 0.0 < result["training_seconds"] < result["seconds"] - 10.0 + 1e-3
    assert made["closed"]
    assert result["version"] == "stable-baselines3 9.9"


def test_sb3_script_below_the_threshold_has_no_numbers(monkeypatch):
    result, made = learn_with_fake(monkeypatch, [9.0] * 99)  # too few episodes
    assert result["env_steps"] is result["seconds"] is result["training_seconds"] is None
    assert (made["env"], made["total"], made["n_epochs"], made["seed"]) == (("CartPole-v1", 8, 4), 100_000, 20, 4)
    assert (made["learning_rate"](1.0), made["clip_range"](0.5)) == (1e-3, 0.1)
    assert "linear" not in made


def test_sb3_script_has_settings_for_every_task():
    assert {task.env_id for task in TASKS.values()} == set(sb3_ppo.SETTINGS)
