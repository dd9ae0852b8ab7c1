"""Benchmark of replay on another node: samples per second from there and from this process, in turns, without learning."""

import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import LearnerState, Replay, ReplayAgent, ReplayConfig
from envpool_bridge.shm.slots import view_slot
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.bench.turns import take_turns
from jaxsrl.cluster.protocol.bundles import requested_bundles
from jaxsrl.cluster.ray.engine import RayEngine, engine_with_room, import_ray
from jaxsrl.cluster.replay.client import RemoteReplayClient
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.collect.slot_layout import agent_layout, trajectory_shapes
from jaxsrl.config.parts import ClusterConfig, PoolConfig, ReplayMemoryConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.learner.host_replay import trajectory_on_host
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.passes.apply import add_agent_fragments, place_on_nodes
from jaxsrl.plan.policies import PLANS
from jaxsrl.replay.client import KeyPrograms, LocalReplayClient, ReplayClient, UpdateKeys

_SPECS = {
    "vector": EnvSpec("Vector", ArraySpec((17,), "float32"), DiscreteSpec(4)),
    "atari": EnvSpec("Frames", ArraySpec((4, 84, 84), "uint8", frames=4), DiscreteSpec(4)),
}
_REPLAY = ReplayConfig(capacity=4096, batch_size=32, min_size=1024, gradient_steps_per_env_step=0.25)
_ROWS, _STEPS = 16, 16
_UPDATES, _ROUNDS = 10, 3
_SECONDS = 300.0


class SlotSender:
    """A Ray actor that sends slots as an environment host does."""

    def __init__(self, num_bytes: int) -> None:
        self._memory, self._sequence = np.ones(num_bytes, np.uint8), -1

    def next_slot(self) -> tuple[int, np.ndarray]:
        self._sequence += 1
        return self._sequence, self._memory


def measure_replay(kind: str) -> dict[str, float]:
    """Measures uniform samples of 32 windows of 3 steps, 64 per update, at a node of the connected cluster.

    Contenders take 3 turns of 10 updates. Each update inserts a slot of 16 rows and 16 steps and draws samples.

    Args:
        kind: Kind of observations: "vector" (17 numbers per step) or "atari" (frames of 7,056 bytes).

    Returns:
        Samples per second (medians over rounds), their ratio, and bytes of a sample, a slot, and a slot's summary for the learner.
    """
    agent, spec = _agent(), _SPECS[kind]
    run = RunConfig(
        num_envs=_ROWS,
        rollout_length=_STEPS,
        replay=ReplayMemoryConfig(memory="cluster"),
        pool=PoolConfig(num_workers=1),
        cluster=ClusterConfig(address="auto", num_hosts=1),
    )
    plan = add_agent_fragments(PLANS["single_learner_coarse"](run, Resources.detect()), agent, run.replay)
    plan = place_on_nodes(run, plan, RayEngine().nodes(), 1)
    config = CollectorConfig(None, spec, plan, agent, 0, 0, jax.random.key(0))  # pyright: ignore[reportArgumentType]
    layout = agent_layout(spec, plan.shape, agent)
    programs = KeyPrograms(agent)
    slot = trajectory_on_host([view_slot(layout, np.ones(layout.slot_bytes, np.uint8).data)])
    with engine_with_room(*requested_bundles(run, plan)) as engine, contextlib.ExitStack() as held:
        there = RemoteReplayClient(config, engine, jax.random.key(0))
        held.callback(there.close)
        here = LocalReplayClient(agent.data, trajectory_shapes(agent, spec, _ROWS, _STEPS))
        held.callback(here.close)
        ray = import_ray()
        sender: Any = ray.remote(num_cpus=0)(SlotSender).remote(layout.slot_bytes)
        held.callback(partial(ray.kill, sender))
        summary_bytes: list[int] = []

        def bring() -> None:
            call = there.fetch(0, 1, sender.next_slot.remote())
            if not engine.wait([call], _SECONDS):
                raise TimeoutError(f"an actor failed: expected a slot within {_SECONDS:g} s")
            sequence, block = engine.get(call)
            there.note_slot(0, sequence, 1)
            summary_bytes.append(block.nbytes)

        turns = {
            "remote": partial(_turn, there, programs, slot, bring),
            "local": partial(_turn, here, programs, slot, None),
        }
        for turn in turns.values():
            turn(10)  # until samples can be drawn
        speeds = take_turns({name: partial(turn, _UPDATES) for name, turn in turns.items()}, _ROUNDS)
        sample_bytes = there.sample_bytes
    remote, local = (statistics.median(speeds[name]) for name in ("remote", "local"))
    return {
        "local_samples_per_second": local,
        "remote_samples_per_second": remote,
        "remote_over_local": remote / local,
        "sample_bytes": float(sample_bytes),
        "slot_bytes": float(layout.slot_bytes),
        "summary_bytes": float(summary_bytes[-1]),
    }


def _turn(
    experience: ReplayClient, programs: KeyPrograms, slot: Any, bring: Callable[[], None] | None, updates: int
) -> float:
    """Returns samples per second over some updates."""
    samples, begin = 0, time.perf_counter()
    for number in range(updates):
        if bring is not None:
            bring()
        due = experience.insert(slot, UpdateKeys(programs, jax.random.key(number)))
        for _ in range(due):
            experience.sample()
        experience.end_update()
        samples += due
    return samples / (time.perf_counter() - begin)


def _agent() -> ReplayAgent:
    def init(key: jax.Array) -> LearnerState:
        del key
        return LearnerState(jnp.zeros(1), (), jnp.int32(0))

    def nothing(*_: Any, **__: Any) -> Any:
        raise TypeError("this benchmark neither acts nor learns")

    never: Any = nothing
    return ReplayAgent("none", init, lambda num_rows: (), never, never, {}, Replay(_REPLAY, sequence_length=3))
