"""Benchmark of offline training: gradient steps a second of the plan `offline`, against one compiled scan over all data."""

import dataclasses
import statistics
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, LearnerState, ReplayAgent, ReplayConfig, Sample, Trajectory
from agents.networks.config import NetworkConfig
from agents.offline.iql import IQLConfig, make_iql
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from jaxsrl.bench.turns import median_ratio, per_second, take_turns
from jaxsrl.learner.finite_watch import FiniteWatch
from jaxsrl.learner.host_replay import HostReplayMesh
from jaxsrl.learner.offline import OfflineLearner, OfflineReplay
from jaxsrl.replay.fixed import FixedReplayClient, choose_num_joined

_OBSERVATION, _ACTION = 17, 6  # those of HalfCheetah
_EPISODE = 1000


def bench_offline(
    env_steps: int = 200_000, batch_size: int = 256, gradient_steps: int = 200, hidden: int = 256, rounds: int = 8
) -> dict[str, Any]:
    """Measures gradient steps per second of IQL on random steps of HalfCheetah's sizes.

    Contenders take alternating turns. One is the learner of the plan `offline`, whose thread gathers windows in host memory while
    the device computes. The other is a program with all steps on the device, which takes the same gradient steps in one scan:
    the way of JAX-CORL.

    Args:
        env_steps: Env steps of the data.
        batch_size: steps of a gradient step.
        gradient_steps: Gradient steps of a turn.
        hidden: size of both layers of every network.
        rounds: turns of each contender.
    """
    spec = EnvSpec("bench", ArraySpec((_OBSERVATION,), "float32"), ArraySpec((_ACTION,), "float32", -1.0, 1.0))
    config = IQLConfig(ReplayConfig(batch_size=batch_size), normalize_observations=False)
    agent = make_iql(config, spec, NetworkConfig(hidden_sizes=(hidden, hidden)))
    steps = _random_steps(env_steps)
    learner = _learner(agent, steps, gradient_steps)
    scan, state = _scan(agent, steps, batch_size, gradient_steps), agent.init(jax.random.key(0))
    scan(state, jax.random.key(0))
    learner.step()

    contenders = {
        "plan": lambda: jax.block_until_ready(learner.step()),
        "scan": lambda: jax.block_until_ready(scan(state, jax.random.key(1))),
    }
    speeds = take_turns({name: partial(per_second, call, gradient_steps) for name, call in contenders.items()}, rounds)
    return {
        "plan_steps_per_second": statistics.median(speeds["plan"]),
        "scan_steps_per_second": statistics.median(speeds["scan"]),
        "ratio": median_ratio(speeds["plan"], speeds["scan"]),
        "env_steps": env_steps,
        "batch_size": batch_size,
        "rounds": rounds,
        "platform": jax.default_backend(),
    }


def _random_steps(count: int) -> Trajectory:
    """Returns one row of whole episodes, [S(+1), 1, ...] numpy arrays."""
    random = np.random.default_rng(0)
    ends = np.arange(count) % _EPISODE == _EPISODE - 2
    resets = np.arange(count) % _EPISODE == _EPISODE - 1
    is_first = np.concatenate([[True], resets])[:, None]
    steps: Any = {
        "observation": random.normal(size=(count + 1, 1, _OBSERVATION)).astype(np.float32),
        "action": random.uniform(-1, 1, (count, 1, _ACTION)).astype(np.float32),
        "reward": random.normal(size=(count, 1)).astype(np.float32),
        "policy_version": np.zeros((count, 1), np.int32),
    }
    flags: Any = {"is_first": is_first, "truncated": ends[:, None], "valid": ~resets[:, None]}
    return Trajectory(**steps, **flags, terminated=np.zeros((count, 1), bool), extras={}, agent_state=())  # pyright: ignore[reportArgumentType]


def _learner(agent: ReplayAgent, steps: Trajectory, gradient_steps: int) -> OfflineLearner:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), steps)
    mesh = HostReplayMesh(jax.local_devices()[:1])
    joined = choose_num_joined(gradient_steps, agent.data, shapes)
    client = FixedReplayClient(agent.data, shapes, steps, gradient_steps, num_joined=joined)
    replay = OfflineReplay(agent, mesh, jax.random.key(1), client)
    return OfflineLearner(replay, jax.jit(agent.init)(jax.random.key(0)), FiniteWatch(100))


def _scan(agent: ReplayAgent, steps: Trajectory, batch_size: int, gradient_steps: int) -> Any:
    """Returns a compiled function of (state, key) that takes the gradient steps of a turn."""
    flat: Trajectory = jax.tree.map(lambda leaf: jnp.asarray(leaf[:, 0]), steps)
    count = len(steps.reward)

    def one(state: LearnerState, key: Array) -> tuple[LearnerState, None]:
        draw_key, update_key = jax.random.split(key)
        places = jax.random.randint(draw_key, (batch_size,), 0, count)
        both = jnp.stack([places, places + 1])
        drawn: Trajectory = jax.tree.map(lambda leaf: leaf[places][None], flat)
        window = dataclasses.replace(drawn, observation=flat.observation[both], is_first=flat.is_first[both])
        sample = Sample(window, jnp.full(batch_size, 1.0 / count), jnp.int32(count))
        return agent.update(state, sample, update_key)[0], None

    def turn(state: LearnerState, key: Array) -> LearnerState:
        return jax.lax.scan(one, state, jax.random.split(key, gradient_steps))[0]

    return jax.jit(turn)
