"""Picklable factory of an actor's policy. Imports no jax, because the actor has not configured it yet."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.spec.tree import Tree

if TYPE_CHECKING:
    from jaxsrl.collect.actors.policy import ActorPolicy

_HOST_DEVICES = "--xla_force_host_platform_device_count"


@dataclasses.dataclass(frozen=True)
class ActorFactory:
    """Factory of an actor's policy, called in the actor; an envpool_bridge.worker.policy.MakeLocalPolicy.

    Attributes:
        agent: the pickled agent (`acting_agent`).
        max_policy_lag: decides which version acts.
        key_data: data of the run's action key, uint32.
        key_impl: name of the key's implementation.
        agent_state: [B, ...] a leaf, numpy, recurrent state of all rows of a resumed run; None for a new run.
        jax_settings: settings of the learner's process, by name, that change results.
    """

    agent: bytes
    max_policy_lag: int
    key_data: np.ndarray
    key_impl: str
    agent_state: Tree
    jax_settings: Mapping[str, object]

    def __call__(
        self, layout: SlotLayout, worker: int, parts: Mapping[int, range], descriptors: Sequence[int]
    ) -> "ActorPolicy":
        """Returns the policy, compiled; `descriptors` are those of SharedParams and of ActorCounters."""
        set_up_jax(os.environ)
        from jaxsrl.collect.actors.policy import make_policy  # imports jax, which reads the environment

        return make_policy(self, layout, worker, parts, descriptors)


def set_up_jax(environment: "os._Environ[str] | dict[str, str]") -> None:
    """Configures jax in an actor, before its import: the CPU, one device, one thread.

    There are many actors, one per core. `policy.start_jax` does the rest.
    """
    flags = [flag for flag in environment.get("XLA_FLAGS", "").split() if not flag.startswith(_HOST_DEVICES)]
    environment["XLA_FLAGS"] = " ".join([*flags, "--xla_cpu_multi_thread_eigen=false"])
    environment["JAX_PLATFORMS"] = "cpu"
