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


def make_population(directory, kind):
    """A directory of a manager of runs after two rounds, with its runs."""
    names = ["round000_a0", "round001_a0", "round001_b0"]
    if kind == "pbt":
        rounds = [
            [
                {
                    "values": {"agent.learning_rate": rate, "agent.optimizer.name": "adam"},
                    "source": source,
                    "score": score,
                }
                for rate, source, score in entries
            ]
            for entries in ([(1e-4, None, 1.0), (1e-2, None, 9.0)], [(8e-3, 1, 8.0), (1e-2, 1, 9.5)])
        ]
        state, file = {"settings": {}, "members": [], "history": rounds}, "population.json"
        names = [f"round{number:03d}_member{member:02d}" for number in (0, 1) for member in (0, 1)]
    elif kind == "psro":
        state, file = {"payoffs": [[0.0, -0.5], [0.5, 0.0]], "mixtures": [[1.0], [0.25, 0.75]]}, "psro.json"
        names = ["policy000", "policy001"]
    else:
        policies = [
            {"name": name, "player": name[9:], "round": int(name[5:8]), "source": source}
            for name, source in zip(names, (None, names[0], None), strict=True)
        ]
        points = [[0.5, 0.2, 0.6], [0.8, 0.5, 0.9], [0.4, 0.1, 0.5]]
        state = {
            "policies": policies,
            "points": points,
            "ratings": [-50.0, 150.0, -100.0],
            "errors": [30.0, 40.0, 50.0],
        }
        file = "league.json"
    for name in names:
        make_run(directory / name)
    (directory / file).write_text(json.dumps(state))
    return directory
