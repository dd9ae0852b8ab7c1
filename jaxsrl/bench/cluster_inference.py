"""Benchmark of a remote inference server: round trips of one lane at a time through Ray."""

import statistics
import time
from typing import Any

import jax

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.shm.slots import SlotAccess, allocate_slots
from jaxsrl.cluster.inference.messages import ActingMessages
from jaxsrl.cluster.inference.server_group import ServerHandle
from jaxsrl.cluster.protocol.bundles import requested_bundles
from jaxsrl.cluster.protocol.published_params import PublishedVersions
from jaxsrl.cluster.ray.engine import RayEngine, engine_with_room
from jaxsrl.collect.acting_agent import layout_of
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.config.parts import ClusterConfig, PoolConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.passes.apply import place_on_nodes
from jaxsrl.plan.policies import PLANS

_ROWS, _CALLS = 64, 300
_SECONDS = 300.0


def measure_inference() -> dict[str, float]:
    """Measures PPO's policy for CartPole at an inference server on a node of the connected cluster: medians over 300 calls.

    Returns:
        Milliseconds per round trip, milliseconds of computation in it, and bytes in each direction.
    """
    run = RunConfig(
        num_envs=_ROWS,
        max_policy_lag=2 + _CALLS // 32,
        pool=PoolConfig(num_workers=1, lanes_per_worker=1),
        cluster=ClusterConfig(address="auto", num_hosts=1, num_inference_servers=1),
    )
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    agent = make_ppo(PPOConfig(), spec, NetworkConfig())
    plan = place_on_nodes(run, PLANS["single_learner_fine"](run, Resources.detect()), RayEngine().nodes(), 1)
    config = CollectorConfig(source, spec, plan, agent, 0, 0, jax.random.key(0))
    layout = agent_layout(spec, plan.shape, agent)
    with engine_with_room(*requested_bundles(run, plan)) as engine:
        params = jax.jit(agent.init)(jax.random.key(0)).params
        versions = PublishedVersions(engine, layout_of(params), run.policy_lag)
        versions.publish(0, params)
        server = ServerHandle(config, 0, plan.inference.nodes[0])
        server.spawn(engine, server.node)
        server.start(versions)
        try:
            return _ask(engine, server, ActingMessages(layout), layout)
        finally:
            server.kill()


def _ask(engine: RayEngine, server: ServerHandle, messages: ActingMessages, layout: Any) -> dict[str, float]:
    if server.remote is None or not engine.wait([server.start_call], _SECONDS):
        raise TimeoutError(f"the inference server failed: expected it to start within {_SECONDS:g} s")
    engine.get(server.start_call)
    link = server.remote.link
    rows = SlotAccess(layout).act_rows(allocate_slots(layout)[0], 0, slice(0, layout.shape.rows_per_lane))
    seconds: list[float] = []
    for step in range(_CALLS):
        begin = time.perf_counter()
        block = link.ask(messages.pack_request(1, 0, step, rows, None)).result(_SECONDS)
        messages.read_answer(block)
        seconds.append(time.perf_counter() - begin)
    asked = server.remote.call("control", "stats")
    if not engine.wait([asked], _SECONDS):
        raise TimeoutError(f"the inference server failed: expected its statistics within {_SECONDS:g} s")
    stats = engine.get(asked)
    return {
        "inference_rows": float(layout.shape.rows_per_lane),
        "inference_round_trip_ms": statistics.median(seconds) * 1e3,
        "inference_computing_ms": stats["busy_seconds"] / stats["calls"] * 1e3,
        "inference_request_bytes": float(messages.request_bytes),
        "inference_answer_bytes": float(messages.answer_bytes),
    }
