"""Policies that train in parallel, each with its own mesh, state, rows and program.

The updates of all policies are enqueued without waits between them, and the devices run them at once. One version of all
parameters is published together.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from agents.api import Agent, Array, LearnerState, Metrics, Params, Trajectory
from agents.transforms.multi_policy import LearningGroup, policy_state
from envpool_bridge.shm.slots import SlotViews
from envpool_bridge.spec.tree import map_leaves
from jaxsrl.learner.finite_updates import SKIPPED
from jaxsrl.learner.mesh import KeyedUpdate, LearnerMesh
from jaxsrl.machine.compiler_options import compiler_options
from jaxsrl.machine.devices import Device, on_device


class GroupMeshes(LearnerMesh):
    """Mesh of a learner of several policies: each policy's part is placed on that policy's mesh.

    Parameters of frozen policies have no mesh. They are on the first device and take part in no computation. As a mesh itself it
    spans all devices.

    Args:
        groups: policies to train.
        devices: Devices of each group, by name; no device is in two.
    """

    def __init__(self, groups: Sequence[LearningGroup], devices: Mapping[str, Sequence[Device]]) -> None:
        super().__init__([device for group in groups for device in devices[group.name]])
        self._groups = tuple(groups)
        self._meshes = {group.name: LearnerMesh(devices[group.name]) for group in groups}

    def place_state(self, state: LearnerState) -> LearnerState:
        return LearnerState(
            params=self._place_parts(state.params),
            opt_state=self._place_parts(state.opt_state),
            num_updates=jax.device_put(state.num_updates, self._meshes[self._groups[0].name].replicated),
            extra=self._place_parts(state.extra),
        )

    def place_batch(self, slots: Sequence[SlotViews]) -> Any:
        """Returns the rows of each policy as a trajectory on its mesh, by the policy's name."""
        return {
            group.name: self._meshes[group.name].place_batch(
                [take_agent_rows(slot, group.agent_indices, group.rows_per_env) for slot in slots]
            )
            for group in self._groups
        }

    def copy_params(self, params: Params) -> Params:
        copies = {
            name: self._meshes[name].copy_params(part) if name in self._meshes else part
            for name, part in params.items()
        }
        return on_device(copies, self.devices[0])

    def jit_update(self, agent: Agent, run_key: Array) -> KeyedUpdate:
        """Returns the updates of all policies, enqueued one after another, on batches from `place_batch`.

        Args:
            agent: Agent, not used, as the groups are known.
            run_key: the number of updates is folded into it, as for one mesh.
        """
        del agent
        programs = {group.name: _jit_group(group, self._meshes[group.name], run_key) for group in self._groups}

        def update(state: LearnerState, batch: Any) -> tuple[LearnerState, Metrics]:
            params, opt_state, extra = dict(state.params), dict(state.opt_state), dict(state.extra)
            metrics: Metrics = {}
            num_updates = state.num_updates
            for name, program in programs.items():
                part = policy_state(state, name)
                number = jax.device_put(state.num_updates, self._meshes[name].replicated)
                learned, own = program((part.params, part.opt_state, part.extra), number, batch[name])
                params[name], opt_state[name], extra[name] = learned.params, learned.opt_state, learned.extra
                if num_updates is state.num_updates:
                    num_updates = learned.num_updates
                metrics |= {f"{name}/{SKIPPED}": own.pop(SKIPPED), **own}
            return LearnerState(params, opt_state, num_updates, extra), metrics

        return update

    def _place_parts(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: jax.device_put(part, self._meshes[name].replicated if name in self._meshes else self.devices[0])
            for name, part in parts.items()
        }


def _jit_group(group: LearningGroup, mesh: LearnerMesh, run_key: Array) -> Any:
    """Returns one policy's update on its mesh. It donates the policy's state, but not the number, which all policies share."""

    def update(part: tuple[Any, Any, Any], number: Array, batch: Trajectory) -> tuple[LearnerState, Metrics]:
        params, opt_state, extra = part
        state = LearnerState(params, opt_state, number, extra)
        return group.update(state, batch, jax.random.fold_in(run_key, number))

    options = compiler_options(mesh.devices[0].platform)
    return jax.jit(update, donate_argnums=0, out_shardings=(mesh.replicated, mesh.replicated), compiler_options=options)


def take_agent_rows(slot: SlotViews, agent_indices: tuple[int, ...], rows_per_env: int) -> SlotViews:
    """Returns a copy of these agents' rows, environment by environment; the slot itself may be released.

    Args:
        slot: Slot of whole environments, B = E * rows_per_env rows.
        agent_indices: Indices of the agents among the rows of an environment.
        rows_per_env: agents of an environment.

    Returns:
        A slot of E * len(agent_indices) rows, without infos and times, which no learner uses.
    """
    own = partial(_take, agent_indices, rows_per_env)
    steps = len(slot.is_first)
    frames, is_first = map_leaves(own, slot.frames), own(slot.is_first_frames)
    names = ("action", "reward", "terminated", "truncated", "valid", "policy_version", "extras", "agent_state")
    return dataclasses.replace(
        slot,
        observation=map_leaves(lambda array: array[len(array) - steps :], frames),
        is_first=is_first[len(is_first) - steps :],
        infos={},
        frames=frames,
        is_first_frames=is_first,
        **{name: map_leaves(own, getattr(slot, name)) for name in names},
    )


def _take(agent_indices: tuple[int, ...], rows_per_env: int, array: np.ndarray) -> np.ndarray:
    """Returns [N, E * len(agent_indices), ...] from [N, E * rows_per_env, ...], copied."""
    length, rest = array.shape[0], array.shape[2:]
    by_env = array.reshape((length, -1, rows_per_env, *rest))
    return by_env[:, :, list(agent_indices)].reshape((length, -1, *rest))
