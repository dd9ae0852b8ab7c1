"""A parameter server in lockstep: every step computes a gradient on a mesh, applies it on one device, and pulls parameters back.

`ServerPrograms` is the server's part of an update, `Replica` the rest; the asynchronous server and its replicas use them too.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, GradientSteps, LearnerState, Metrics, OptState, Progress, Trajectory
from jaxsrl.learner.finite_updates import all_finite, keep_if_finite
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.learner.parameter_server.packed_tree import Block, pack, unpack, unpack_stacked
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.machine.devices import Device


class Replica:
    """Compiled programs of one replica. Rows are sharded over its mesh, and the compiler reduces gradients over it.

    Thread-safety: one thread.

    Args:
        steps: The update in parts.
        mesh: Mesh of the replica.
        run_key: The key of an update is its number folded into this.

    Attributes:
        num_steps: Gradient steps of an update.
        prepare: Maps (params block, extra, batch, number, num_updates) to the inputs of all gradients of trajectory `number`, rows
            sharded as in `batch`, and its metrics. Schedules are functions of `num_updates`.
    """

    def __init__(self, steps: GradientSteps, mesh: LearnerMesh, run_key: Array) -> None:
        def prepare(
            params: Block, extra: Any, batch: Trajectory, number: Array, num_updates: Array
        ) -> tuple[Any, Metrics]:
            return steps.prepare(unpack(params), extra, batch, jax.random.fold_in(run_key, number), num_updates)

        def gradient(params: Block, prepared: Any, step: Array) -> tuple[Block, Block]:
            grads, metrics = steps.gradient(unpack(params), prepared, step)
            return pack(grads), pack(metrics)

        self.num_steps = steps.num_steps
        self._mesh = mesh
        options = compiler_options(mesh.devices[0].platform)
        self.prepare = jax.jit(prepare, compiler_options=options)
        shardings = (mesh.replicated, mesh.replicated)
        self._gradient = jax.jit(gradient, out_shardings=shardings, compiler_options=options)

    def place(self, values: Any) -> Any:
        """Returns a pytree from the server's device, whole on every device of the replica."""
        return jax.device_put(values, self._mesh.replicated)

    def gradient(self, params: Block, prepared: Any, step: int) -> tuple[Block, Block]:
        """Returns gradient number `step` of the update at `params` over all rows, and its metrics; whole on every device."""
        return self._gradient(params, prepared, np.int32(step))


class ServerPrograms:
    """Optimizer step and end of an update, compiled for the server's device. Between steps parameters are a block.

    Args:
        steps: The update in parts.
        device: Device of the server.

    Attributes:
        nothing_skipped: `Progress.num_skipped` before the first gradient step of an update.
        all_finite: `is_finite` of `apply` before the first gradient step of an update.
        finish: Ends an update. Maps (state, progress, whether all steps were finite, metrics of `GradientSteps.prepare`, a metrics
            block of each gradient step) to the learner state, its parameters not packed, and metrics. The optimizer state is that
            after the last step in both. If something was not finite, the update counts as skipped, and only its finite steps stay.
        pack: Maps parameters to a block, as they travel.
        unpack: Maps a block to parameters, as `act` takes them.
    """

    def __init__(self, steps: GradientSteps, device: Device) -> None:
        def apply(
            opt_state: OptState, rest: Progress, is_finite: Array, grads: Block, metrics: Block
        ) -> tuple[Progress, Array]:
            before = dataclasses.replace(rest, params=unpack(rest.params), opt_state=opt_state)
            progress = steps.apply(before, unpack(grads), unpack(metrics))
            ok = all_finite((grads, progress.params, progress.opt_state))
            progress = jax.tree.map(lambda new, old: jnp.where(ok, new, old), progress, before)
            return dataclasses.replace(progress, params=pack(progress.params)), is_finite & ok

        def finish(
            state: LearnerState,
            progress: Progress,
            is_finite: Array,
            prepared_metrics: Metrics,
            step_metrics: Sequence[Block],
        ) -> tuple[LearnerState, Metrics]:
            progress = dataclasses.replace(progress, params=unpack(progress.params))
            finished, metrics = steps.finish(state, progress, prepared_metrics, unpack_stacked(step_metrics))
            # Earlier steps of the update were finite and stay: their optimizer state was donated.
            before = dataclasses.replace(state, params=progress.params, opt_state=progress.opt_state)
            return keep_if_finite(before, finished, metrics, is_finite)

        self._device = device
        # The parameters are not donated: a replica on the server's own device may have pulled this very memory.
        options = compiler_options(device.platform)
        self._apply = jax.jit(apply, donate_argnums=0, compiler_options=options)
        self.finish = jax.jit(finish, compiler_options=options)
        self.pack, self.unpack = jax.jit(pack), jax.jit(unpack)
        self.nothing_skipped, self.all_finite = jax.device_put((np.int32(0), np.bool_(True)), device)

    def receive(self, values: Any) -> Any:
        """Returns the values that a replica pushed, on the server's device."""
        return jax.device_put(values, self._device)

    def apply(self, progress: Progress, is_finite: Array, grads: Block, metrics: Block) -> tuple[Progress, Array]:
        """Takes one gradient step, or drops it if it is not finite.

        Args:
            progress: Progress before the step; its parameters are a block, and its optimizer state is donated.
            is_finite: Whether all earlier steps of the update were finite, bool scalar.
            grads: Gradient.
            metrics: float32 scalars of the gradient.

        Returns:
            The progress, and whether all steps so far were finite.
        """
        rest = dataclasses.replace(progress, opt_state=())
        return self._apply(progress.opt_state, rest, is_finite, grads, metrics)


class SynchronousUpdate:
    """An update with the interface and the results of a jitted update of a mesh: (state, batch) -> (state, metrics).

    The returned state and metrics are on the server's device. The optimizer's state of the argument is donated.

    Args:
        steps: The update in parts.
        mesh: Mesh over which rows are sharded, and gradients computed.
        device: Device of the server, which may be one of the mesh's.
        run_key: The number of updates is folded into it for each update.
    """

    def __init__(self, steps: GradientSteps, mesh: LearnerMesh, device: Device, run_key: Array) -> None:
        self._replica = Replica(steps, mesh, run_key)
        self._server = ServerPrograms(steps, device)

    def __call__(self, state: LearnerState, batch: Trajectory) -> tuple[LearnerState, Metrics]:
        """Runs one update. Returns before the devices are done with it."""
        replica, server = self._replica, self._server
        state = server.receive(state)
        progress = Progress(server.pack(state.params), state.opt_state, state.num_updates, server.nothing_skipped)
        is_finite = server.all_finite
        params, extra, number = replica.place((progress.params, state.extra, state.num_updates))
        prepared, prepared_metrics = replica.prepare(params, extra, batch, number, number)
        step_metrics: list[Block] = []
        for step in range(replica.num_steps):
            grads, metrics = server.receive(replica.gradient(params, prepared, step))
            progress, is_finite = server.apply(progress, is_finite, grads, metrics)
            step_metrics.append(metrics)
            params = replica.place(progress.params)
        # The optimizer state of the argument was donated to the first step.
        state = dataclasses.replace(state, opt_state=progress.opt_state)
        return server.finish(state, progress, is_finite, server.receive(prepared_metrics), step_metrics)
