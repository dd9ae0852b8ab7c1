"""Training on experience outside the learning devices: insertion, prefetched samples, one compiled gradient step for each."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, LearnerState, Metrics, ReplayAgent, Sample, Trajectory
from envpool_bridge.shm.slots import SlotViews
from jaxsrl.learner.finite_updates import SKIPPED, keep_if_finite
from jaxsrl.learner.mesh import LearnerMesh, as_trajectory
from jaxsrl.learner.sample_preparer import SamplePreparer
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.machine.devices import Device
from jaxsrl.machine.split_cpu import host_device
from jaxsrl.metrics.utilization import SAMPLE_WAIT_SECONDS
from jaxsrl.replay.client import KeyPrograms, ReplayClient, UpdateKeys
from jaxsrl.replay.fixed import join_rows
from jaxsrl.replay.on_device import REPLAY_METRICS, step_keys, transform_sample


class HostReplayMesh(LearnerMesh):
    """Mesh that places samples on devices and leaves trajectories on the host."""

    def __init__(self, devices: Sequence[Device]) -> None:
        super().__init__(devices)
        self._sample_shardings: dict[Any, Sample] = {}

    def place_batch(self, slots: Sequence[SlotViews]) -> Trajectory:
        return trajectory_on_host(slots)

    def place_sample(self, sample: Sample) -> Sample:
        """Returns the sample, its rows sharded; for one device, a sample of numpy arrays as it is.

        The compiled call that takes it places them in a tenth of the time of `device_put`.
        """
        if len(self.devices) == 1 and isinstance(sample.trajectory.reward, np.ndarray):
            return sample
        form = jax.tree.structure(sample), sample.trajectory.reward.shape
        if form not in self._sample_shardings:
            self._sample_shardings[form] = self.sample_shardings(sample)
        return jax.device_put(sample, self._sample_shardings[form])


class HostReplay:
    """Counterpart of a compiled update: inserts a trajectory and runs the gradient steps that are due.

    The same key gives the samples of replay on a device. Sample n of an update is prepared with the state before its gradient
    step max(0, n - lag), where lag is 0 without a preparer. Thread-safety: one thread.

    Args:
        agent: agent to train, for single frames.
        mesh: learning devices.
        run_key: the number of updates is folded into it.
        experience: replay to sample from; closed with this.
        preparer: Preparer of samples, on other devices; closed with this. None prepares them in the program of the gradient step.

    Attributes:
        mesh: learning devices.
        experience: replay to sample from.
    """

    def __init__(
        self,
        agent: ReplayAgent,
        mesh: HostReplayMesh,
        run_key: Array,
        experience: ReplayClient,
        preparer: SamplePreparer | None = None,
    ) -> None:
        self.mesh, self._preparer = mesh, preparer
        self._agent, self._run_key, self.experience = agent, run_key, experience
        options = compiler_options(mesh.devices[0].platform)
        self._learn = jax.jit(self._gradient_step, donate_argnums=(0, 1), compiler_options=options)
        # Without the rest of the state, which a compiled call would copy.
        self._one_more = jax.jit(lambda number: number + 1)
        sync = agent.data.sync_acting_params
        self._refresh = jax.jit(sync, donate_argnums=0) if sync is not None else lambda state: state
        self._mean = jax.jit(lambda sums, steps: jax.tree.map(lambda value: value / steps, sums))
        # The host derives the keys of draws from its count: an accelerator would compute them only after all queued updates.
        self._fold_in, self._host_key = jax.jit(jax.random.fold_in), jax.device_put(run_key, host_device())
        self._keys = KeyPrograms(agent)
        self._num_updates: int | None = None
        self._make_zeros: Callable[[], Metrics] | None = None

    def __call__(self, state: LearnerState, batch: Trajectory | None) -> tuple[LearnerState, Metrics]:
        """Runs an update as `mesh.KeyedUpdate` does. The batch is copied before the return, and the state is donated.

        Fixed experience takes no batch.

        Calls must follow each other: only the first state's number of updates is read, later numbers are counted.
        """
        if self._num_updates is None:
            self._num_updates = int(state.num_updates)
        update = np.int32(self._num_updates)
        due = self.experience.insert(batch, UpdateKeys(self._keys, self._fold_in(self._host_key, update)))
        state = dataclasses.replace(state, num_updates=self._one_more(state.num_updates))
        state, sums = self._learn_steps(state, update, due)
        self.experience.end_update()
        self._num_updates += 1
        return self._refresh(state), self._metrics(sums, due)

    def _learn_steps(self, state: LearnerState, update: np.int32, due: int) -> tuple[LearnerState, Metrics | None]:
        """Takes the gradient steps of an update; returns the state and the sums of their metrics."""
        sums: Metrics | None = None
        requested = 0
        for number in range(due):
            if self._preparer is None:
                sample = self.experience.sample()
            else:
                while requested < min(due, number + self._preparer.lag + 1):
                    self._preparer.request(self.experience.sample(), state, update, requested)
                    requested += 1
                sample = self._preparer.get()
            sample = self.mesh.place_sample(sample)
            sums = self._zeros(state, sample) if sums is None else sums
            state, sums, priority = self._learn(state, sums, sample, update, np.int32(number))
            self.experience.update_priorities(priority)
        return state, sums

    def totals(self) -> dict[str, float]:
        """Returns totals since the start, by metric name: those of the replay client, and seconds of waiting for samples."""
        totals = {**self.experience.totals(), SAMPLE_WAIT_SECONDS: self.experience.waited_seconds()}
        if self._preparer is not None:
            totals[SAMPLE_WAIT_SECONDS] += self._preparer.waited_seconds
            totals["prepare/busy_seconds"] = self._preparer.busy_seconds()
        return totals

    def close(self) -> None:
        """Closes the preparer and the replay client."""
        try:
            if self._preparer is not None:
                self._preparer.close()
        finally:
            self.experience.close()

    def _gradient_step(
        self, state: LearnerState, sums: Metrics, sample: Sample, update: Array, number: Array
    ) -> tuple[LearnerState, Metrics, Array]:
        learned, metrics, priority = self._update(state, sample, update, number)
        learned, metrics = keep_if_finite(state, learned, metrics)
        return learned, jax.tree.map(jnp.add, sums, metrics), priority

    def _update(
        self, state: LearnerState, sample: Sample, update: Array, number: Array
    ) -> tuple[LearnerState, Metrics, Array]:
        keys = step_keys(self._agent, jax.random.fold_in(self._run_key, update), number)
        if self._preparer is None:
            sample = transform_sample(self._agent, state, sample, keys.transforms)
        return self._agent.update(state, sample, keys.update)

    def _zeros(self, state: LearnerState, sample: Sample) -> Metrics:
        """Returns sums of nothing, in new memory: they are donated."""
        if self._make_zeros is None:
            shapes = jax.eval_shape(self._update, state, sample, np.int32(0), np.int32(0))[1]
            zeros: Any = {name: np.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
            no_sums = zeros | {SKIPPED: np.float32(0.0)}
            self._make_zeros = jax.jit(lambda: jax.tree.map(jnp.asarray, no_sums), out_shardings=self.mesh.replicated)
        return self._make_zeros()

    def _metrics(self, sums: Metrics | None, due: int) -> dict[str, Any]:
        means: Any = {SKIPPED: np.float32(0.0)} if sums is None else self._mean(sums, np.float32(due))
        values = map(np.float32, (due, self.experience.num_steps, self.experience.num_stale))
        return {**means, **dict(zip(REPLAY_METRICS, values, strict=True))}


def trajectory_on_host(slots: Sequence[SlotViews]) -> Trajectory:
    """Returns slots of several pools as one trajectory of numpy arrays: views of one slot, or copies of several."""
    parts = [_on_host(slot) for slot in slots]
    return parts[0] if len(parts) == 1 else join_rows(parts)


def _on_host(slot: SlotViews) -> Trajectory:
    state: Any = jax.tree.map(lambda leaf: leaf[0], slot.agent_state)
    return dataclasses.replace(as_trajectory(slot), agent_state=state)
