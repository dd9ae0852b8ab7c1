"""Run directories as training leaves them, for tests of the web page; nothing is trained."""

import json

from jaxsrl.config.run_config import RunConfig
from jaxsrl.config.serialization import to_json
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.plan import plan_to_json
from jaxsrl.plan.policies import PLANS

NUM_UPDATES = 20


def record(update, wall_seconds, **values):
    """A line of metrics.jsonl."""
    shares = {"environments": 0.25, "inference": 0.5, "learner": 0.75}
    said = {"update": update, "env_steps": update * 128, "frames": update * 512, "wall_seconds": wall_seconds}
    said |= {"episode/return_mean": float(update), "loss/total": 1.0 / update, "trajectories/dropped_total": 0.0}
    said |= {"speed/env_steps_per_second": 1000.0 + update, "checkpoint/update": 0.0}
    for name, busy in shares.items():
        said |= {f"utilization/{name}/busy": busy, f"utilization/{name}/wait": 0.9 - busy}
    return json.dumps({**said, **values}) + "\n"


def make_run(path, seed=0, updates=NUM_UPDATES, log="complete"):
    """A run of 20 updates of which `updates` are done."""
    path.mkdir(parents=True)
    config = RunConfig(name=path.name, seed=seed, total_env_steps=NUM_UPDATES * 128, num_envs=8, rollout_length=16)
    spec = {
        "env_id": "CartPole-v1",
        "observation": {
            "kind": "array",
            "shape": [4],
            "dtype": "float32",
            "low": [-1.0, float("-inf")],
            "high": [1.0, 2.0],
        },
        "action": {"kind": "discrete", "num_values": 2, "start": 0, "source_dtype": "int64"},
    }
    experiment = {"run": to_json(config), "agent": {"learning_rate": 0.001 * (1 + seed)}}
    (path / "config.json").write_text(json.dumps({"agent_name": "ppo", "experiment": experiment, "env_spec": spec}))
    plan = PLANS["single_learner_fine"](config, Resources(4, "cpu", 1))
    (path / "plan.json").write_text(json.dumps(plan_to_json(plan)))
    (path / "metrics.jsonl").write_text("".join(record(update, update * 0.5) for update in range(1, updates + 1)))
    (path / "log.txt").write_text(f"2026-01-01 10:00:00 {log} at update {updates}, {updates * 128} env steps, 9.0 s\n")
    return path
