"""A parameter server in lockstep: gradients are computed on a mesh, applied on one device, and pulled back every step.

The server's part of an update, which the asynchronous server shares, is `ServerPrograms`.
"""

from collections.abc import Sequence

import jax
import numpy as np

from agents.api import Array, GradientSteps, LearnerState, Metrics, OptState, Params, Progress, Trajectory
from jaxsrl.learner.mesh import Device, LearnerMesh
from jaxsrl.learner.replica import Replica


class ServerPrograms:
    """Optimizer step and end of an update, compiled for the server's device.

    Attributes:
        nothing_skipped: `Progress.num_skipped` before the first gradient step of an update.
    """

    def __init__(self, steps: GradientSteps, device: Device) -> None:
        """Programs of these gradient steps."""

        def apply(params: Params, opt_state: OptState, num_skipped: Array, grads: Params, metrics: Metrics) -> Progress:
            return steps.apply(Progress(params, opt_state, num_skipped), grads, metrics)

        def finish(
            state: LearnerState, progress: Progress, prepared_metrics: Metrics, step_metrics: Sequence[Metrics]
        ) -> tuple[LearnerState, Metrics]:
            stacked = {name: jax.numpy.stack([step[name] for step in step_metrics]) for name in step_metrics[0]}
            return steps.finish(state, progress, prepared_metrics, stacked)

        self._device = device
        # The parameters are not donated: a replica on the server's own device may have pulled this very memory.
        self._apply = jax.jit(apply, donate_argnums=1)
        self._finish = jax.jit(finish)
        self.nothing_skipped = jax.device_put(np.int32(0), device)

    def receive(self, values: tuple[Params, Metrics]) -> tuple[Params, Metrics]:
        """Gradients and metrics pushed by a replica, on the server's device."""
        return jax.device_put(values, self._device)

    def apply(self, progress: Progress, grads: Params, metrics: Metrics) -> Progress:
        """One gradient step; `progress.opt_state` is donated."""
        return self._apply(progress.params, progress.opt_state, progress.num_skipped, grads, metrics)

    def finish(
        self, state: LearnerState, progress: Progress, prepared_metrics: Metrics, step_metrics: Sequence[Metrics]
    ) -> tuple[LearnerState, Metrics]:
        """End of an update, from the metrics of each of its steps. `state.opt_state` may have been donated: it is not read.

        Args:
            state: as the update began.
            progress: after its last step.
            prepared_metrics: float32 scalars.
            step_metrics: float32 scalars, one dict a gradient step.
        """
        before = LearnerState(state.params, progress.opt_state, state.num_updates, state.extra)
        return self._finish(before, progress, jax.device_put(prepared_metrics, self._device), step_metrics)


class SynchronousUpdate:
    """Stands in for the jitted update of a mesh: the same (state, batch) -> (state, metrics), the same results.

    The returned state and metrics are on the server's device. The optimizer's state of the argument is donated.
    """

    def __init__(self, steps: GradientSteps, mesh: LearnerMesh, device: Device, run_key: Array) -> None:
        """Gradients over `mesh`, applied on `device`, which may be one of the mesh's.

        Args:
            steps: the update, cut at its gradients.
            mesh: over which rows are sharded.
            device: of the server.
            run_key: the number of updates is folded into it for each update.
        """
        self._replica = Replica(steps, mesh, run_key)
        self._server = ServerPrograms(steps, device)
        self._device = device

    def __call__(self, state: LearnerState, batch: Trajectory) -> tuple[LearnerState, Metrics]:
        """One update. Returns before the devices are done with it."""
        replica, server = self._replica, self._server
        state = jax.device_put(state, self._device)
        params, extra, number = replica.place((state.params, state.extra, state.num_updates))
        prepared, prepared_metrics = replica.prepare(params, extra, batch, number)
        progress, step_metrics = Progress(state.params, state.opt_state, server.nothing_skipped), []
        for step in range(replica.num_steps):
            grads, metrics = server.receive(replica.gradient(params, prepared, step))
            progress = server.apply(progress, grads, metrics)
            step_metrics.append(metrics)
            params = replica.place(progress.params)
        return server.finish(state, progress, prepared_metrics, step_metrics)
