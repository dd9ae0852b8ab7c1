"""Benchmarks: that they run, count what they say they count, and write rows a table can hold."""

import contextlib
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxsrl.bench.plans
import jaxsrl.bench.pool
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from jaxsrl.bench.plans import bench_plans
from jaxsrl.bench.pool import PoolSizes, bench_pool
from jaxsrl.bench.processes import in_own_process
from jaxsrl.bench.rivals.vector_envs import gymnasium_vector, run_competing_processes
from jaxsrl.bench.train import measure_training


def test_a_short_training_run_is_measured(capsys):
    result = measure_training(workers=1, num_envs=8, max_policy_lag=0, env_steps=8 * 32 * 3)
    assert result["env_steps_per_second"] > 0.0
    assert (result["workers"], result["num_envs"], result["max_policy_lag"]) == (1, 8, 0)
    assert (result["env_id"], result["platform"], result["policy_lag_mean"]) == ("CartPole-v1", "cpu", 0.0)
    assert result["inference_batch_rows"] == 4  # 8 rows in 2 lanes, each with a call of its own
    assert result["frames_per_second"] == result["env_steps_per_second"]
    assert all(0.0 <= result[f"wait_share_{part}"] <= 1.0 for part in ("environment", "inference", "learner"))
    assert json.loads(json.dumps(result)) == result
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_bench_pool_reports_every_rival_as_json():
    command = [sys.executable, "-m", "jaxsrl.cli.main", "bench", "pool", "--workers", "1", "--envs-per-worker", "2"]
    done = subprocess.run(
        [*command, "--competing-processes", "1", "--seconds", "0.4", "--rounds", "15", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    rivals = ("limit", "sync_vector_env", "async_vector_env")
    for rival in rivals:
        assert result[f"ratio_to_{rival}"] > 0.0
        assert len(result["rounds"][rival]) == len(result["rounds"]["pool"]) == 15
    assert (result["env_id"], result["competing_processes"]) == ("CartPole-v1", 1)
    assert (result["workers"], result["envs_per_worker"]) == (1, 2)
    assert min(result["rounds"]["pool"]) <= result["env_steps_per_second"] <= max(result["rounds"]["pool"])


def test_bench_pool_takes_arguments_and_counts_agents():
    pytest.importorskip("mpe2")
    result = bench_pool(PoolSizes(1, 2), "simple_tag_v3", "mpe", '{"num_good": 2}', seconds=0.4, rounds=2)
    assert result["rows_per_env"] == 5
    assert set(result["rounds"]) == {"pool", "limit"}


def test_bench_pool_works_with_short_rounds():
    source = EnvConfig("CartPole-v1").source()
    with jaxsrl.bench.pool.step_pool(source, source.spec(), PoolShape(1, 1, 1, 2, 32, 3)) as step:
        turns, deadline = 0, time.monotonic() + 60.0
        while turns < 150:  # less than a rollout each, more than the ring in all
            assert time.monotonic() < deadline, f"no steps after {turns} turns"
            turns += step(0.001) > 0.0


def test_bench_pool_measures_rivals_with_competing_processes(monkeypatch):
    busy = []

    @contextlib.contextmanager
    def beside(count):
        busy.append(count)
        yield
        busy.clear()

    def contender():
        return contextlib.nullcontext(lambda seconds: float(busy == [3]))

    monkeypatch.setattr(jaxsrl.bench.pool, "run_competing_processes", beside)
    monkeypatch.setattr(jaxsrl.bench.pool, "_contenders", lambda *_: {"pool": contender(), "limit": contender()})
    result = bench_pool(PoolSizes(1, 2), seconds=0.1, competing_processes=3)
    assert result["rounds"] == {"pool": [1.0] * 40, "limit": [1.0] * 40}
    assert busy == []


def test_bench_rivals_rotate_after_warm_up(monkeypatch):
    turns = []

    def contender(name):
        def step(seconds):
            turns.append((name, seconds))
            return seconds

        return contextlib.nullcontext(step)

    names = ("pool", "limit", "rival")
    monkeypatch.setattr(jaxsrl.bench.pool, "_contenders", lambda *_: {name: contender(name) for name in names})
    result = bench_pool(PoolSizes(1, 2), seconds=8.0, rounds=8)
    assert list(result["rounds"]) == list(names)
    assert result["rounds"] == {name: [1.0] * 8 for name in names}  # seconds that count
    measured = turns[len(names) :]
    before, counted = measured[::2], measured[1::2]
    assert [name for name, _ in before] == [name for name, _ in counted]
    assert all(0.0 < seconds < 0.5 for _, seconds in before)
    orders = {tuple(name for name, _ in counted[begin : begin + 3]) for begin in range(0, 24, 3)}
    assert len(orders) > 1
    assert {order[0] for order in orders} == set(names)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_bench_counts_every_reset_as_a_step(mode):
    calls = []

    class Short(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(0.0, 1.0, (1,)), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            calls.append("reset")
            return np.zeros(1, np.float32), {}

        def step(self, action):
            calls.append("step")
            return np.zeros(1, np.float32), 0.0, calls[-2:] == ["step", "step"], False, {}

    with gymnasium_vector(partial(SyncVectorEnv, [Short], autoreset_mode=mode)) as step:
        calls.clear()
        start = time.perf_counter()
        speed = step(0.05)
        assert speed * 0.05 <= len(calls) <= 1 + speed * (time.perf_counter() - start)


def test_contender_in_its_own_process_ends_with_its_context():
    @contextlib.contextmanager
    def answer():
        print("an environment's banner")
        yield lambda seconds: os.getpid() + seconds

    with in_own_process("it", answer) as ask:
        process = int(ask(0.25))
        assert process != os.getpid()
        assert ask(0.5) == process + 0.5
    assert not Path(f"/proc/{process}").exists()


def _children_of(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _computed_seconds(process: int) -> float:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[11]) / os.sysconf("SC_CLK_TCK")


def test_competing_processes_compute_until_their_time_is_over():
    before = set(_children_of(os.getpid()))
    with run_competing_processes(2):
        children = set(_children_of(os.getpid())) - before
        assert len(children) == 2
        deadline = time.monotonic() + 60.0
        while min(map(_computed_seconds, children)) <= 0.05:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert set(_children_of(os.getpid())) == before


def test_competing_processes_end_with_a_process_that_is_killed():
    importing = "from jaxsrl.bench.rivals.vector_envs import run_competing_processes"
    script = f"{importing}\nwith run_competing_processes(1):\n    print(flush=True)\n    input()"
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    parent.stdout.readline()
    (child,) = _children_of(parent.pid)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 60.0
    while Path(f"/proc/{child}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_bench_plans_measures_every_named_plan(monkeypatch):
    asked = []
    told = {"env_steps_per_second": 5.0, "policy_lag_mean": 0.5, "policy_lag_max": 1.0, "learner_idle_share": 0.25}
    told |= {"peak_memory_bytes": 7, "slots_bytes": 3, "platform": "cpu", "records": 2, "more": 1}

    def run_apart(settings):
        asked.append(settings)
        return {**told, "plan": settings["changes"]["plan"], "workers": settings["workers"]}

    monkeypatch.setattr(jaxsrl.bench.plans, "run_apart", run_apart)
    monkeypatch.setattr(jaxsrl.bench.plans, "local_devices", lambda: ("cpu", 1, "cpu"))
    names = ("single_learner_fine", "multiple_learners", "device_only")
    rows = bench_plans(names, env_steps=100, num_envs=4)["plans"]
    assert [(row["plan"], row["devices"], row["workers"]) for row in rows] == [
        ("single_learner_fine", 1, 2),
        ("multiple_learners", 2, 2),
        ("device_only", 1, 2),
    ]
    assert all(row["env_steps_per_second"] == 5.0 and "more" not in row for row in rows)
    assert [settings["num_cpu_devices"] for settings in asked] == [0, 2, 0]
    assert [settings["env_steps"] for settings in asked] == [100, 100, 1000]
    assert [settings["env"]["suite"] for settings in asked] == ["gymnasium", "gymnasium", "jax"]
    monkeypatch.setattr(jaxsrl.bench.plans, "local_devices", lambda: ("gpu", 1, "gpu"))
    with pytest.raises(UserError, match="central needs 2 devices, but there are 1 of gpu: set JAX_PLATFORMS=cpu"):
        bench_plans(("central",))


@pytest.mark.slow
def test_bench_plans_measures_each_plan_in_its_own_process():
    rows = bench_plans(("multiple_learners",), env_steps=128 * 32 * 2)["plans"]
    assert [row["plan"] for row in rows] == ["multiple_learners"]
    for row in rows:
        assert row["env_steps_per_second"] > 0
        assert row["policy_lag_mean"] <= row["policy_lag_max"] == 1
        assert 0 <= row["learner_idle_share"] <= 1
        assert 50 << 20 < row["peak_memory_bytes"] < 4 << 30
        assert row["slots_bytes"] > 128 * 32 * 4 * 4
    assert [row["devices"] for row in rows] == [2]


def test_bench_plans_rejects_unknown_plan_before_start():
    with pytest.raises(UserError, match="unknown plan 'seriall': .*did you mean serial"):
        bench_plans(("central", "seriall"))
