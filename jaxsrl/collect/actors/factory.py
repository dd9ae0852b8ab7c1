"""What the learner's process sends its actors: enough to make a policy there. Imports no jax, as the actor has not set it up."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from envpool_bridge.shm.layout import SlotLayout
from envpool_bridge.shm.packed_arrays import ParamsLayout
from envpool_bridge.spec.tree import Tree

if TYPE_CHECKING:
    from jaxsrl.collect.actors.policy import ActorPolicy

_HOST_DEVICES = "--xla_force_host_platform_device_count"


@dataclasses.dataclass(frozen=True)
class ActorFactory:
    """Makes an actor's policy, in the actor; an envpool_bridge.worker.policy.MakeLocalPolicy.

    Attributes:
        agent: a pickled pair of the agent and a tree shaped as its parameters (its leaves do not matter).
        params_layout: of the shared parameters.
        max_policy_lag: decides which version acts.
        key_data: of the run's action key, uint32.
        key_impl: name of the key's implementation.
        agent_state: [B, ...] a leaf, numpy, of all rows of the run as it is resumed; None at the beginning.
        jax_settings: of the learner's process, by name, that change what is computed.
    """

    agent: bytes
    params_layout: ParamsLayout
    max_policy_lag: int
    key_data: np.ndarray
    key_impl: str
    agent_state: Tree
    jax_settings: Mapping[str, object]

    def __call__(
        self, layout: SlotLayout, worker: int, parts: Mapping[int, range], descriptors: Sequence[int]
    ) -> "ActorPolicy":
        """The policy, compiled; `descriptors` are those of SharedParams and of ActorCounters."""
        set_up_jax(os.environ)
        from jaxsrl.collect.actors.policy import make_policy  # imports jax, which reads the environment

        return make_policy(self, layout, worker, parts, descriptors)


def set_up_jax(environment: "os._Environ[str] | dict[str, str]") -> None:
    """Settings of jax in an actor, which must be made before it is imported: the CPU, one device, one thread.

    The actors are many, and their number is what uses the cores. `policy.start_jax` does the rest.
    """
    flags = [flag for flag in environment.get("XLA_FLAGS", "").split() if not flag.startswith(_HOST_DEVICES)]
    environment["XLA_FLAGS"] = " ".join([*flags, "--xla_cpu_multi_thread_eigen=false"])
    environment["JAX_PLATFORMS"] = "cpu"
