"""Benchmark of PPO with environments on the device against PureJaxRL's published program, in turns."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from jaxsrl.bench.rivals.purejaxrl_ppo import Sizes, make_flat_ppo
from jaxsrl.bench.rivals.rejax_ppo import has_rejax, make_rejax_ppo
from jaxsrl.bench.turns import median_ratio, per_second
from jaxsrl.device_loop.loop import DeviceLearner
from jaxsrl.device_loop.program import make_run_keys
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.learner.mesh import LearnerMesh

Advance = Callable[[int], object]  # runs N updates and waits for them

_HIDDEN = (64, 64)
_AGENT = PPOConfig(num_epochs=4, num_minibatches=4)
_TURN_SECONDS = 0.25
_BASELINES = {
    "flat_ppo": "PureJaxRL's published PPO, reimplemented (jaxsrl.bench.rivals.purejaxrl_ppo): no registry has the package",
    "rejax": "the PPO of the package rejax",
}


def bench_on_device(
    num_envs: tuple[int, ...] = (64, 512, 2048), rollout_length: int = 128, seconds: float = 10.0
) -> dict[str, Any]:
    """Measures PPO on the JAX CartPole, MLP 64x64, 4 epochs of 4 minibatches, against baselines on one device.

    The baselines are our reimplementation of PureJaxRL's program, and rejax's if that package is installed. All compile before
    the clock starts. A turn is one dispatch, of a quarter second or of one update if that takes longer.

    Args:
        num_envs: numbers of environments to measure.
        rollout_length: T.
        seconds: Seconds of measurement at each size, over all contenders.

    Returns:
        A row of `sizes` for each number of environments. `env_steps_per_second` has the median of each contender's turns.
        `ratio` has the median over rounds of our speed relative to each baseline. `rounds` counts the turns.
    """
    return {
        "env_id": "CartPole-v1 (jax)",
        "rollout_length": rollout_length,
        "num_epochs": _AGENT.num_epochs,
        "num_minibatches": _AGENT.num_minibatches,
        "hidden_sizes": list(_HIDDEN),
        "platform": jax.default_backend(),
        "baselines": _BASELINES if has_rejax() else {"flat_ppo": _BASELINES["flat_ppo"]},
        "sizes": [{"num_envs": size, **_compare(size, rollout_length, seconds)} for size in num_envs],
    }


def _compare(num_envs: int, rollout_length: int, seconds: float) -> dict[str, Any]:
    turns: dict[str, Callable[[], float]] = {}
    for name, advance in _contenders(num_envs, rollout_length).items():
        updates = _updates_a_turn(advance)
        turns[name] = partial(per_second, partial(advance, updates), updates * num_envs * rollout_length)
    rounds: list[dict[str, float]] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or not rounds:
        rounds.append({name: turn() for name, turn in turns.items()})
    speeds = {name: [speed[name] for speed in rounds] for name in turns}
    return {
        "env_steps_per_second": {name: statistics.median(measured) for name, measured in speeds.items()},
        "ratio": {name: median_ratio(speeds["jaxsrl"], speeds[name]) for name in speeds if name != "jaxsrl"},
        "rounds": len(rounds),
    }


def _contenders(num_envs: int, rollout_length: int) -> dict[str, Advance]:
    """Returns compiled functions that advance each contender."""
    sizes = Sizes(num_envs, rollout_length, _AGENT.num_epochs, _AGENT.num_minibatches)
    contenders = {"jaxsrl": _ours(num_envs, rollout_length), "flat_ppo": _baseline(make_flat_ppo, sizes)}
    if has_rejax():
        contenders["rejax"] = _baseline(make_rejax_ppo, sizes)
    return contenders


def _updates_a_turn(advance: Advance) -> int:
    """Returns the number of updates that takes about a quarter second; at least one."""
    advance(1)
    updates = 1
    while True:
        start = time.perf_counter()
        advance(updates)
        if time.perf_counter() - start >= _TURN_SECONDS / 2:
            return updates
        updates *= 2


def _ours(num_envs: int, rollout_length: int) -> Advance:
    env = CartPole()
    agent = make_ppo(_AGENT, env.spec(), NetworkConfig(hidden_sizes=_HIDDEN))
    init_key, act_key, update_key = jax.random.split(jax.random.key(0), 3)
    keys = make_run_keys(0, act_key, update_key, num_envs)
    mesh = LearnerMesh(jax.local_devices()[:1])
    return DeviceLearner(agent, env, mesh, rollout_length, agent.init(init_key), keys).step


def _baseline(make: Callable[..., Any], sizes: Sizes) -> Advance:
    init, program = make(CartPole(), sizes, _HIDDEN, _AGENT.learning_rate)
    state = init(jax.random.key(0))

    def advance(num_updates: int) -> None:
        nonlocal state
        state = jax.block_until_ready(program(np.int32(num_updates), state))

    return advance
