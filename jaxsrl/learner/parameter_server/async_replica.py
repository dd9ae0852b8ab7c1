"""A replica that pushes gradients at its own pace."""

from collections.abc import Callable

import jax

from agents.api import Array, GradientSteps, Metrics, Trajectory
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.async_server import ParameterServer
from jaxsrl.learner.parameter_server.packed_tree import Block
from jaxsrl.learner.parameter_server.synchronous import Replica


class AsynchronousReplica:
    """One of a parameter server's replicas. Thread-safety: one thread.

    Args:
        steps: The update in parts.
        mesh: Mesh of the replica.
        server: Server to pull from and push to.
        replica: Number of the replica, from 0.
        run_key: The same for all replicas. Every trajectory of every replica folds its own number into it; with one replica that
            is the number of updates, as in a single learner.
    """

    def __init__(
        self, steps: GradientSteps, mesh: LearnerMesh, server: ParameterServer, replica: int, run_key: Array
    ) -> None:
        self._replica = Replica(steps, mesh, run_key)
        self._server, self._number = server, replica

    def update(self, batch: Trajectory, should_stop: Callable[[], bool]) -> Metrics | None:
        """Learns from one trajectory: pulls, computes and pushes for each gradient step. Dropped gradients are not recomputed.

        Args:
            batch: Trajectory on the replica's mesh. It has been read when this returns.
            should_stop: Called between gradient steps.

        Returns:
            Metrics, on the server's device; None if stopped before the last step: the trajectory is then not completed.
        """
        replica, server = self._replica, self._server
        num_updates = server.trajectories_completed(self._number)
        number = num_updates * server.num_replicas + self._number
        start = server.pull()
        params, extra = replica.place((start.params, start.extra))
        # Parameters for the first gradient are pulled only after the preparation, so that it is not stale from the start.
        prepared, prepared_metrics = jax.block_until_ready(replica.prepare(params, extra, batch, number, num_updates))
        step_metrics: list[Block] = []
        for step in range(replica.num_steps):
            if should_stop():
                return None
            pulled = server.pull()
            # Pushed only once it is computed: otherwise gradients would be applied in the order of their requests.
            grads, metrics = jax.block_until_ready(replica.gradient(replica.place(pulled.params), prepared, step))
            server.push(self._number, pulled.version, grads, metrics)
            step_metrics.append(metrics)
        return server.complete(self._number, prepared_metrics, step_metrics)
