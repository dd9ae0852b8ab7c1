"""Benchmark of every plan on the same work, in turns of one session."""

import difflib
from typing import Any

from envpool_bridge.errors import UserError
from envpool_bridge.limits import count_cores
from jaxsrl.bench.one_run import run_apart
from jaxsrl.bench.processes import local_devices
from jaxsrl.plan.policies import PLANS, REPLAY_PLANS

# Options that a plan needs beyond the common sizes: two devices for replicas or for separate inference.
_CHANGES: dict[str, dict[str, Any]] = {
    "decoupled": {"inference.num_devices": 1},
    "multiple_learners": {"learner.num_devices": 2},
    "central": {"learner.num_devices": 2},
}
_DEVICES = {"decoupled": 2, "multiple_learners": 2, "central": 2}
# It is an order of magnitude faster, and records are written once a second.
_LONGER = {"device_only": 10}


def bench_plans(plans: tuple[str, ...] = (), env_steps: int = 400_000, num_envs: int = 128) -> dict[str, Any]:
    """Measures PPO on CartPole-v1 (the JAX one for device_only) under each plan: speed, policy lag, idle learner, memory.

    Sizes are those of `bench train`, and the policy lag is 1.

    Args:
        plans: names of plans; all of them by default.
        env_steps: length of each run; ten times as many for device_only.
        num_envs: environments in all.

    Returns:
        `plans` has one row per plan: plan, env_steps_per_second, policy_lag_mean and _max, learner_idle_share, peak_memory_bytes
        (Pss of main process and workers together), slots_bytes, devices.

    Raises:
        UserError: If a plan is unknown.
    """
    known = [name for name in PLANS if name not in REPLAY_PLANS]
    for name in plans:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UserError(f"unknown plan {name!r}: expected one of {', '.join(known)}{hint}")
    platform, num_devices, _ = local_devices()
    return {"plans": [_row(name, env_steps, num_envs, platform, num_devices) for name in plans or known]}


def _row(plan: str, env_steps: int, num_envs: int, platform: str, num_devices: int) -> dict[str, Any]:
    cores = count_cores()
    workers = max(1, cores - 1) if plan == "dedicated_environments" else 2
    wanted = _DEVICES.get(plan, 1)
    if wanted > num_devices and platform != "cpu":
        raise UserError(
            f"{plan} needs {wanted} devices, but there are {num_devices} of {platform}: set JAX_PLATFORMS=cpu"
        )
    settings = {
        "workers": workers,
        "num_envs": num_envs,
        "env_steps": env_steps * _LONGER.get(plan, 1),
        "env": {"id": "CartPole-v1", "suite": "jax" if plan == "device_only" else "gymnasium"},
        "changes": {"plan": plan, **_CHANGES.get(plan, {})},
        "num_cpu_devices": wanted if wanted > num_devices else 0,
    }
    result = run_apart(settings)
    columns = ("plan", "env_steps_per_second", "policy_lag_mean", "policy_lag_max", "learner_idle_share")
    columns += ("peak_memory_bytes", "slots_bytes", "platform", "workers", "records")
    return {**{name: result[name] for name in columns}, "devices": wanted}
