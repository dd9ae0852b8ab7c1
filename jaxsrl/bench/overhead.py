"""Benchmark of the cost of all guards: two trainings that alternate in one process, one with guards and one without.

Without guards, environment outputs are not validated (types, shapes, finite, in range), no supervisor monitors workers, and updates
are not checked for NaN. Each turn collects one trajectory and trains on it. Neighboring turns are compared, so drift of the
machine's speed affects both.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import psutil

from agents.api import Agent, LearnerState
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.protocol import EnvRows, EnvSource, EpisodeReset
from envpool_bridge.errors import UserError, WaitTimeoutError
from envpool_bridge.pool import EnvPool, PoolOptions
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.bench.turns import per_second, take_turns
from jaxsrl.collect.inference.act import act_in_slot, make_act, row_keys
from jaxsrl.learner.finite_updates import with_finite_updates
from jaxsrl.learner.mesh import LearnerMesh

_ROLLOUT_LENGTH, _NUM_SLOTS = 32, 3
_WAIT_SECONDS = 60.0
_NEVER = 10**15


@dataclasses.dataclass(frozen=True)
class UncheckedSource:
    """Rows of a source without validation of their outputs. For this benchmark alone."""

    inside: GymnasiumSource

    def spec(self) -> EnvSpec:
        return self.inside.spec()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        rows = self.inside.make_rows(row_ids, run_seed, keep_infos)
        rows._thorough_every = _NEVER
        rows.verify = lambda observation, reward: None
        return rows


def bench_overhead(workers: int = 2, num_envs: int = 128, rounds: int = 200) -> dict[str, Any]:
    """Measures PPO on CartPole with all guards and without any, in turns: cost of checks, supervision and finite updates.

    Args:
        workers: environment processes of each contender.
        num_envs: environments of each contender.
        rounds: turns of each contender, of one trajectory of 32 steps and its update.

    Returns:
        Medians over turns. `cost` is 1 minus the median of the ratios of neighboring turns, with the quartiles of those ratios.
        `cpu_cost` compares processor time, workers included. It is less exact on a quiet machine, since waiting processes spin
        briefly, but other load on the machine hardly affects it.

    Raises:
        UserError: environments cannot be divided among the workers.
    """
    if num_envs % workers:
        raise UserError(f"num_envs must divide by workers: got {num_envs} and {workers}")
    source = EnvConfig("CartPole-v1").source()
    if not isinstance(source, GymnasiumSource):
        raise TypeError("expected CartPole to be made one by one")
    steps = num_envs * _ROLLOUT_LENGTH
    shape = PoolShape(workers, 1, 1, num_envs // workers, _ROLLOUT_LENGTH, _NUM_SLOTS)
    agent = make_ppo(PPOConfig(), source.spec(), NetworkConfig(hidden_sizes=(64, 64)))
    with (
        _training(source, shape, agent, True) as guarded,
        _training(UncheckedSource(source), shape, agent, False) as bare,
    ):
        for turn in (guarded, bare) * 3:  # compiles and starts
            turn()
        before = [turn.cpu_seconds() for turn in (guarded, bare)]
        # The order alternates, so that both pay for caches that the other leaves cold.
        turns = {"guarded": partial(per_second, guarded, steps), "bare": partial(per_second, bare, steps)}
        speeds = take_turns(turns, rounds, list.reverse)
        cpu = [turn.cpu_seconds() - used for turn, used in zip((guarded, bare), before, strict=True)]
    ratios = sorted(with_ / without for with_, without in zip(speeds["guarded"], speeds["bare"], strict=True))
    return {
        "workers": workers,
        "num_envs": num_envs,
        "rounds": rounds,
        "guarded_env_steps_per_second": statistics.median(speeds["guarded"]),
        "unguarded_env_steps_per_second": statistics.median(speeds["bare"]),
        "cost": 1.0 - statistics.median(ratios),
        "cost_lower_quartile": 1.0 - ratios[3 * rounds // 4],
        "cost_upper_quartile": 1.0 - ratios[rounds // 4],
        "guarded_cpu_us_per_env_step": cpu[0] / (steps * rounds) * 1e6,
        "unguarded_cpu_us_per_env_step": cpu[1] / (steps * rounds) * 1e6,
        "cpu_cost": 1.0 - cpu[1] / cpu[0],
    }


@contextlib.contextmanager
def _training(source: EnvSource, shape: PoolShape, agent: Agent, guards: bool) -> Iterator["_Turn"]:
    """Yields a function that collects a trajectory, acts for all environments in turn, and trains on it."""
    with EnvPool(source, shape, PoolOptions(run_seed=0), extras=agent.extras) as pool:
        if not guards:
            pool._supervisor._check = lambda now: None
        rows = shape.rows_per_part
        pool.start([EpisodeReset((0,) * rows, (None,) * rows)] * shape.num_parts)
        mesh, key = LearnerMesh(jax.devices()[:1]), jax.random.key(0)
        update = jax.jit((with_finite_updates(agent) if guards else agent).update, donate_argnums=0)
        yield _Turn(pool, agent, mesh, update, mesh.place_state(agent.init(key)))


class _Turn:
    """Callable that collects one trajectory and trains on it."""

    def __init__(
        self, pool: EnvPool, agent: Agent, mesh: LearnerMesh, update: Callable[..., Any], state: LearnerState
    ) -> None:
        self._pool, self._mesh, self._update, self._state = pool, mesh, update, state
        shape, self._key = pool.shape, jax.random.key(1)
        self._act = make_act(agent)
        self._rows = [range(pool.num_rows)[shape.lane_rows(lane)] for lane in range(shape.num_lanes)]
        self._keys = [row_keys(self._key, rows) for rows in self._rows]
        self._states = [agent.initial_agent_state(len(rows)) for rows in self._rows]
        self._own_cpu_seconds = 0.0

    def cpu_seconds(self) -> float:
        """Returns processor time of this process in its turns, and of its workers at any time."""
        workers = [psutil.Process(pid).cpu_times() for pid in self._pool._workers._pids]
        return self._own_cpu_seconds + sum(times.user + times.system for times in workers)

    def __call__(self) -> None:
        start = time.process_time()
        self._take_turn()
        self._own_cpu_seconds += time.process_time() - start

    def _take_turn(self) -> None:
        pool, deadline = self._pool, time.monotonic() + _WAIT_SECONDS
        while (sequence := pool.acquire(0.0)) is None:
            for lane in pool.wait_ready(0.05):
                self._act_for(lane)
            if time.monotonic() > deadline:
                raise WaitTimeoutError(
                    f"expected a trajectory within {_WAIT_SECONDS:g} s: the environments do not step"
                )
        slot = pool.views[sequence % pool.shape.num_slots]
        self._state, _ = self._update(self._state, self._mesh.place_batch([slot]), self._key)
        jax.block_until_ready(self._state)
        pool.release(sequence)

    def _act_for(self, lane: int) -> None:
        pool, rows = self._pool, self._rows[lane]
        sequence, t = pool.position(lane)
        slot = pool.views[sequence % pool.shape.num_slots]
        acting = pool.access.act_rows(slot, t, slice(rows.start, rows.stop))
        steps = np.full(len(rows), sequence * pool.shape.rollout_length + t, np.uint32)
        state = self._states[lane]
        self._states[lane] = act_in_slot(self._act, self._state.params, acting, state, self._keys[lane], steps, 0)
        pool.post_actions(lane)
