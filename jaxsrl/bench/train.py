"""Speed of a training run: env steps per second while learning, and the waiting times of its parts."""

import dataclasses
import statistics
import tempfile
from collections.abc import Mapping
from typing import Any

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EnvSource
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.config.changes import with_options
from jaxsrl.config.parts import CheckpointConfig, EvalConfig, MetricsConfig, PoolConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import Experiment
from jaxsrl.machine.resources import Resources
from jaxsrl.metrics.record_file import read_steady_records
from jaxsrl.plan.cost.channel_bytes import bytes_of_plan
from jaxsrl.plan.load_plan import make_plan

# By fragment in a record, by kind in what a bench prints: our own policies name their fragments alike.
_SHARES = {
    "environment": "utilization/environments/wait",
    "inference": "utilization/inference/wait",
    "learner": "utilization/learner/wait",
}


def bench_train(
    workers: int = 2, num_envs: int = 128, max_policy_lag: int = 1, env_steps: int = 800_000
) -> dict[str, Any]:
    """Measures PPO on CartPole: env steps per second while learning, and wait times of each component.

    Args:
        workers: environment processes.
        num_envs: environments in all.
        max_policy_lag: Largest policy lag, as in RunConfig.
        env_steps: length of the run.

    Returns:
        The result of `measure_training`.
    """
    return measure_training(workers, num_envs, max_policy_lag, env_steps)


def measure_training(
    workers: int = 2,
    num_envs: int = 128,
    max_policy_lag: int = 1,
    env_steps: int = 800_000,
    env: EnvConfig | EnvSource | None = None,
    network: NetworkConfig | None = None,
    agent: PPOConfig | None = None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measures the training speed of PPO, by default with T = 32, 4 epochs of 4 minibatches and an MLP 64x64.

    The first second, in which everything compiles, does not count. The result is the median of the one-second records after it.

    Args:
        workers: environment processes.
        num_envs: environments in all.
        max_policy_lag: updates that acting may be behind.
        env_steps: length of the run.
        env: environment, or a source of environments; CartPole-v1 if None.
        network: Network of the agent.
        agent: PPO's configuration.
        changes: further options of RunConfig by dotted name, e.g. `plan` or `learner.num_devices`.

    Returns:
        env_steps_per_second, wait shares (of wall time), inference batch size in rows and latency in milliseconds, and the
        bytes of all trajectory slots.
    """
    env, network, agent = env or EnvConfig(), network or NetworkConfig(), agent or PPOConfig()
    config = RunConfig(
        name="bench",
        total_env_steps=env_steps,
        num_envs=num_envs,
        max_policy_lag=max_policy_lag,
        pool=PoolConfig(num_workers=workers),
        metrics=MetricsConfig(interval_seconds=1.0),
        checkpoint=CheckpointConfig(interval_updates=0),
        eval=EvalConfig(final_episodes=0),
    )
    config = with_options(config, changes or {})
    experiment = Experiment(env, agent, network, config)
    made_agent, _, spec = experiment.build()
    plan = make_plan(config)
    layout = agent_layout(spec, plan.shape, made_agent)
    with tempfile.TemporaryDirectory() as directory:
        run = dataclasses.replace(config, directory=directory)
        report = dataclasses.replace(experiment, run=run).train(quiet=True)
        records = read_steady_records(report.directory / "metrics.jsonl")
    return {
        "env_id": spec.env_id,
        "plan": config.plan,
        "workers": workers,
        "num_envs": num_envs,
        "rollout_length": config.rollout_length,
        "max_policy_lag": config.max_policy_lag,
        "network": network.torso,
        "platform": Resources.detect().platform,
        **_summarize(records, spec.action_repeat),
        "slots_bytes": bytes_of_plan(plan, layout, 0).slots,
    }


def _summarize(records: list[dict[str, float]], action_repeat: int) -> dict[str, Any]:
    def median(name: str) -> float:
        return statistics.median(record.get(name, 0.0) for record in records)

    speed = median("speed/env_steps_per_second")
    return {
        "env_steps_per_second": speed,
        "frames_per_second": speed * action_repeat,
        **{f"wait_share_{part}": median(name) for part, name in _SHARES.items()},
        "inference_batch_rows": median("inference/batch_rows"),
        "inference_latency_ms": median("inference/latency_ms"),
        "policy_lag_mean": median("policy/lag_mean"),
        "policy_lag_max": max(record.get("policy/lag_max", 0.0) for record in records),
        "learner_idle_share": 1.0 - median("utilization/learner/busy"),
        "records": len(records),
    }
