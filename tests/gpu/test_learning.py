"""A whole learning run: Pong to its end and its greedy evaluation."""

import json

import pytest

from tests.gpu.train_command import HAS_ATARI, command, ends

pytestmark = pytest.mark.gpu
SETTINGS = ("--run.max-policy-lag", "1", "--agent.learning-rate", "5e-4", "--network.dtype", "bfloat16")
FULL = (
    "--run.total-env-steps",
    "2000000",
    "--run.num-envs",
    "112",
    "--pool.num-workers",
    "14",
    "--run.rollout-length",
    "32",
)
TINY = ("--run.total-env-steps", "32", "--run.num-envs", "4", "--pool.num-workers", "2", "--run.rollout-length", "4")
GOAL = 18.0


@pytest.mark.seconds(300)
def test_pong_is_learned(row, size, tmp_path):
    if not HAS_ATARI:
        pytest.skip("not run: ale_py or cv2 is not installed")
    flags = (*size(FULL, TINY), *SETTINGS, "--agent.num-minibatches", size("16", "2"))
    evaluation = (
        "--eval.final-episodes",
        size("10", "1"),
        "--eval.processes",
        size("10", "0"),
        "--metrics.interval-seconds",
        "1",
    )
    status, output = ends(command("ppo_atari", tmp_path, *flags, *evaluation), 380)
    assert status == 0, output[-1000:]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    reached = next((record for record in records if record.get("episode/return_mean", -21.0) >= GOAL), None)
    when = f"{reached['env_steps']:,} env steps and {reached['wall_seconds']:.0f} s" if reached else "never"
    evaluated = json.loads((tmp_path / "run" / "eval.json").read_text())
    result = f"greedy return {evaluated['mean_return']:.1f}; training return {GOAL:g} after {when}"
    row(f"`jaxsrl train ppo_atari {' '.join(flags)}`", result, f"{records[-1]['wall_seconds']:.0f} s in all")
    assert evaluated["mean_return"] >= size(GOAL, -21.0)
