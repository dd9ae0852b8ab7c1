"""Programs of a replica: everything of an update except its optimizer steps, compiled for the replica's own mesh."""

from typing import Any

import jax
import numpy as np

from agents.api import Array, GradientSteps, Metrics, Trajectory
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.packed_tree import Block, pack, unpack


class Replica:
    """Compiled programs of one replica. Rows are sharded over its mesh, and the compiler reduces gradients over it.

    Thread-safety: one thread.

    Args:
        steps: The update in parts.
        mesh: Mesh of the replica.
        run_key: The key of an update is its number folded into this.

    Attributes:
        num_steps: Gradient steps of an update.
    """

    def __init__(self, steps: GradientSteps, mesh: LearnerMesh, run_key: Array) -> None:
        def prepare(params: Block, extra: Any, batch: Trajectory, number: Array) -> tuple[Any, Metrics]:
            return steps.prepare(unpack(params), extra, batch, jax.random.fold_in(run_key, number))

        def gradient(params: Block, prepared: Any, step: Array) -> tuple[Block, Block]:
            grads, metrics = steps.gradient(unpack(params), prepared, step)
            return pack(grads), pack(metrics)

        self.num_steps = steps.num_steps
        self._mesh = mesh
        self._prepare = jax.jit(prepare)
        self._gradient = jax.jit(gradient, out_shardings=(mesh.replicated, mesh.replicated))

    def place(self, values: Any) -> Any:
        """Returns a pytree from the server's device, whole on every device of the replica."""
        return jax.device_put(values, self._mesh.replicated)

    def prepare(self, params: Block, extra: Any, batch: Trajectory, number: int | Array) -> tuple[Any, Metrics]:
        """Returns the inputs of all gradients of update `number`, rows sharded as in `batch`; and its metrics."""
        return self._prepare(params, extra, batch, number)

    def gradient(self, params: Block, prepared: Any, step: int) -> tuple[Block, Block]:
        """Returns gradient number `step` of the update at `params` over all rows, and its metrics; whole on every device."""
        return self._gradient(params, prepared, np.int32(step))
