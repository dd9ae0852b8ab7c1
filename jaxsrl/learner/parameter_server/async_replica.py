"""A replica that pushes gradients at its own pace."""

from collections.abc import Callable

import jax

from agents.api import Array, GradientSteps, Metrics, Trajectory
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.async_server import ParameterServer
from jaxsrl.learner.parameter_server.packed_tree import Block
from jaxsrl.learner.parameter_server.replica import Replica


class AsynchronousReplica:
    """One of a parameter server's replicas. Thread-safety: one thread."""

    def __init__(
        self, steps: GradientSteps, mesh: LearnerMesh, server: ParameterServer, replica: int, run_key: Array
    ) -> None:
        """Replica number `replica`.

        Args:
            steps: the update, cut at its gradients.
            mesh: the replica's own.
            server: to pull from and push to.
            replica: its number, from 0.
            run_key: the same for all replicas; every trajectory of every replica folds its own number into it, which with one
                replica is the number of updates, as in a single learner.
        """
        self._replica = Replica(steps, mesh, run_key)
        self._server, self._number = server, replica

    def update(self, batch: Trajectory, should_stop: Callable[[], bool]) -> Metrics | None:
        """One trajectory: for each gradient step pulls, computes, pushes. Dropped gradients are not computed again.

        Args:
            batch: on the replica's mesh. It has been read when this returns.
            should_stop: asked between gradient steps.

        Returns:
            Metrics, on the server's device; None if stopped before the last step: the trajectory is then not completed.
        """
        replica, server = self._replica, self._server
        number = server.trajectories_completed(self._number) * server.num_replicas + self._number
        start = server.pull()
        params, extra = replica.place((start.params, start.extra))
        # Only when the preparation is done are parameters pulled for the first gradient, so that it is not stale from the start.
        prepared, prepared_metrics = jax.block_until_ready(replica.prepare(params, extra, batch, number))
        step_metrics: list[Block] = []
        for step in range(replica.num_steps):
            if should_stop():
                return None
            pulled = server.pull()
            # Pushed when it is computed and not before: otherwise gradients would be applied in the order they were asked for.
            grads, metrics = jax.block_until_ready(replica.gradient(replica.place(pulled.params), prepared, step))
            server.push(self._number, pulled.version, grads, metrics)
            step_metrics.append(metrics)
        return server.complete(self._number, prepared_metrics, step_metrics)
