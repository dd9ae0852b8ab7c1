"""Measurement of the simulation's costs, in this process: `jaxsrl plan EXPERIMENT --simulate --calibrate`."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agents.api import Agent
from agents.transforms.frame_stacking import with_stacked_frames
from envpool_bridge.envs.protocol import EnvSource, EpisodeReset, first_rows, step_rows
from envpool_bridge.errors import UserError
from envpool_bridge.limits import count_cores
from envpool_bridge.shm.layout import PoolShape
from envpool_bridge.shm.slots import SlotAccess, SlotViews, allocate_slots
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.collect.episode_log import EpisodeLog
from jaxsrl.collect.inference.act import act_in_slot, make_act, row_keys
from jaxsrl.collect.slot_layout import agent_layout, agent_state_spec
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import Experiment
from jaxsrl.learner.finite_updates import with_finite_updates
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.resources import cpu_model
from jaxsrl.metrics.episodes import EpisodeTracker
from jaxsrl.plan.cost.channel_bytes import params_bytes_of
from jaxsrl.planner.calibration import Calibration
from jaxsrl.planner.wakeup_time import measure_doorbell_seconds

_SECONDS = 1.0
_COPIED_BYTES = 1 << 26


class _Trial:
    """Rows that are stepped and acted for in turn, each timed."""

    def __init__(self, agent: Agent, source: EnvSource, spec: EnvSpec, config: RunConfig, rows: int) -> None:
        self._agent, self.num_rows = agent, rows
        self._steps = config.rollout_length
        layout = agent_layout(spec, PoolShape(1, 1, 1, rows, self._steps, 1), agent)
        self.slot: SlotViews = allocate_slots(layout)[0]
        self.slot_bytes = layout.slot_bytes
        self._access = SlotAccess(layout)
        self._rows = source.make_rows(range(rows), config.seed, False)
        self._keys = row_keys(jax.random.key(1), range(rows))
        self._act = make_act(agent)
        self._params = jax.jit(agent.init)(jax.random.key(0)).params
        self._state = agent.initial_agent_state(rows)
        first = first_rows(self.slot)
        self._rows.reset(EpisodeReset((0,) * rows, (None,) * rows), first)
        first.begin_history()
        self.fill()  # compiles

    def times(self, seconds: float) -> tuple[list[float], list[float]]:
        """Returns the times of each step of all rows, and of each inference call."""
        step_seconds: list[float] = []
        act_seconds: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(step_seconds) < 2 * self._steps:
            steps, calls = self.fill()
            step_seconds += steps
            act_seconds += calls
        return step_seconds, act_seconds

    def close(self) -> None:
        self._rows.close()

    def fill(self) -> tuple[list[float], list[float]]:
        """Fills the slot; returns the times of steps and of inference calls."""
        self._access.carry(self.slot, self.slot, slice(None))
        step_rows(self.slot, slice(0, self._steps)).prepare()
        step_seconds: list[float] = []
        act_seconds: list[float] = []
        for t in range(self._steps):
            start = time.perf_counter()
            steps = np.full(self.num_rows, t, np.uint32)
            rows = self._access.act_rows(self.slot, t, slice(None))
            self._state = act_in_slot(self._act, self._params, rows, self._state, self._keys, steps, 0)
            middle = time.perf_counter()
            self._rows.step(rows.action, step_rows(self.slot, t))
            step_seconds.append(time.perf_counter() - middle)
            act_seconds.append(middle - start)
        return step_seconds, act_seconds


def measure(experiment: Experiment, name: str, act_rows: tuple[int, ...], update_rows: tuple[int, ...]) -> Calibration:
    """Returns the costs of an experiment on this machine.

    Args:
        experiment: Experiment to measure.
        name: Name of the experiment.
        act_rows: sizes of calls to time, in order; environments are stepped at the first and the last.
        update_rows: sizes of updates to time, in order.

    Raises:
        UserError: If the agent learns from replay, which is not simulated.
    """
    agent, source, spec = experiment.build()
    config = experiment.run
    if not isinstance(agent, Agent):
        raise UserError(
            f"agent {agent.name} learns from replay, which the simulation does not support: use PPO, for example"
        )
    stacked = with_finite_updates(with_stacked_frames(agent, spec))
    assert isinstance(stacked, Agent)
    act: list[tuple[int, float]] = []
    steps: list[tuple[int, float, float]] = []
    row_bytes = 0.0
    for rows in act_rows:
        trial = _Trial(stacked, source, spec, config, rows)
        step_seconds, act_seconds = trial.times(_SECONDS)
        trial.close()
        act.append((rows, statistics.median(act_seconds)))
        steps.append((rows, *_mean_and_spread(step_seconds)))
        row_bytes = trial.slot_bytes / rows
    row_seconds, part_seconds = _line(steps[0][:2], steps[-1][:2])
    updates = [
        (rows, *_time_update(_Trial(stacked, source, spec, config, rows), stacked, spec)) for rows in update_rows
    ]
    return Calibration(
        experiment=name,
        env_id=spec.env_id,
        cores=count_cores(),
        cpu=cpu_model(),
        row_seconds=row_seconds,
        part_seconds=part_seconds,
        step_cv=steps[0][2] / steps[0][1] * steps[0][0] ** 0.5,
        act=tuple(act),
        update=tuple((rows, seconds) for rows, seconds, _, _ in updates),
        update_cores=updates[-1][2],
        update_flops=tuple((rows, flops) for rows, _, _, flops in updates if flops),
        rollout_length=config.rollout_length,
        doorbell_seconds=measure_doorbell_seconds(),
        handover_seconds=0.0,
        copy_bytes_per_second=_copy_speed(),
        row_bytes=row_bytes,
        params_bytes=float(params_bytes_of(agent)),
        gradients_per_update=_count_gradient_steps(agent),
    )


def _count_gradient_steps(agent: Agent) -> int:
    """Returns the gradient steps of an update; 0 where the agent does not offer them."""
    return 0 if agent.gradient_steps is None else agent.gradient_steps.num_steps


def _mean_and_spread(times: list[float]) -> tuple[float, float]:
    """Returns mean and standard deviation without the slowest hundredth, in which another process ran."""
    fastest = sorted(times)[: max(2, len(times) * 99 // 100)]
    return statistics.fmean(fastest), statistics.pstdev(fastest)


def _line(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """Returns the parts of a step's time per row and per worker."""
    if small[0] == large[0]:
        return small[1] / small[0], 0.0
    slope = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
    return slope, max(0.0, small[1] - slope * small[0])


def _time_update(trial: _Trial, agent: Agent, spec: EnvSpec) -> tuple[float, float, float]:
    """Returns (seconds, cores kept busy, operations) of an update with the rows of `trial`."""
    mesh = LearnerMesh(jax.local_devices()[:1])
    update: Any = mesh.jit_update(agent, jax.random.key(2))
    state = mesh.place_state(agent.init(jax.random.key(0)))
    batch = mesh.place_batch([trial.slot])
    costs = update.lower(state, batch).compile().cost_analysis() or {}

    episodes = EpisodeTracker(trial.num_rows, spec.info_fields)
    log = EpisodeLog(trial.num_rows, 0, spec, agent_state=agent_state_spec(agent))

    def once() -> None:
        """Processes a slot like `Learner.step`."""
        nonlocal state
        state, metrics = update(state, mesh.place_batch([trial.slot]))
        episodes.observe(trial.slot)
        log.observe(trial.slot)
        jax.block_until_ready((state, metrics))
        jax.block_until_ready(mesh.copy_params(state.params))

    seconds, cores = _timed(once, trial.fill)
    trial.close()
    return seconds, cores, float(costs.get("flops", 0.0))


def _timed(call: Callable[[], None], before: Callable[[], Any]) -> tuple[float, float]:
    """Returns the median seconds of a call and its mean number of busy cores; `before` runs untimed between two calls.

    In a run too, an update follows steps: its data have left the caches, and its threads are asleep.
    """
    call()
    times: list[float] = []
    cpu = 0.0
    first = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - first < _SECONDS:
        before()
        cpu_before, start = time.process_time(), time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
        cpu += time.process_time() - cpu_before
    return statistics.median(times), cpu / sum(times)


def _copy_speed() -> float:
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.empty(_COPIED_BYTES, np.uint8)
    target[...] = source
    start = time.perf_counter()
    for _ in range(5):
        target[...] = source
    return 5 * _COPIED_BYTES / (time.perf_counter() - start)
