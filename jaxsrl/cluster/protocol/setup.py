"""Setup of an environment host, as bytes: everything from which the collectors of its machine are made."""

import dataclasses
import pickle
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

import cloudpickle
import jax
import numpy as np

from agents.api import Agent, AnyAgent, LearnerState, Params
from envpool_bridge.envs.protocol import EpisodeReset
from envpool_bridge.shm.packed_arrays import ParamsLayout
from jaxsrl.collect.collector import CollectorConfig
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch

# Settings that change what a program computes: a host's must be the learner's.
JAX_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")


@dataclasses.dataclass(frozen=True)
class HostSetup:
    """One incarnation of one environment host.

    Attributes:
        config: of the run's sources, its key of actions apart; the environments may be those that follow a lost host.
        replica: of the plan's environments, which this host has.
        key_data: of the run's key of actions, uint32.
        key_impl: name of that key's implementation.
        jax_settings: of the learner's process, by name.
        params_layout: of the flat parameters.
        template: of the parameters; its leaves do not matter.
        first_version: of the parameters, that comes first; the others follow one by one.
        reset: of all rows of the run; those of other hosts are ignored.
        incarnation: number of earlier starts of this host or server.
    """

    config: CollectorConfig
    replica: int
    key_data: np.ndarray
    key_impl: str
    jax_settings: Mapping[str, Any]
    params_layout: ParamsLayout
    template: Params
    first_version: int
    reset: EpisodeReset
    incarnation: int = 0

    def to_bytes(self) -> bytes:
        return cloudpickle.dumps(self)


def load_setup(data: bytes) -> Any:
    """Returns the HostSetup or ReplaySetup with these bytes, after jax was set up as in the learner's process."""
    setup = pickle.loads(data)
    use_synchronous_cpu_dispatch()
    for name, value in setup.jax_settings.items():
        jax.config.update(name, value)
    return setup


def make_setup(
    config: CollectorConfig,
    replica: int,
    layout: ParamsLayout,
    first_version: int,
    reset: EpisodeReset,
    incarnation: int = 0,
) -> HostSetup:
    """Returns the setup of host number `replica`; as HostSetup's attributes."""
    key, agent = config.act_key, config.agent
    shapes = jax.eval_shape(agent.init, jax.random.key(0)).params
    sent = dataclasses.replace(config, act_key=None, agent=acting_agent(agent, shapes))  # pyright: ignore
    return HostSetup(
        config=sent,
        replica=replica,
        key_data=np.asarray(jax.random.key_data(key)),
        key_impl=str(jax.random.key_impl(key)),
        jax_settings={name: getattr(jax.config, name) for name in JAX_SETTINGS},
        params_layout=layout,
        template=jax.tree.map(lambda leaf: 0, shapes),
        first_version=first_version,
        reset=reset,
        incarnation=incarnation,
    )


def acting_agent(agent: AnyAgent, params: Params) -> AnyAgent:
    """Returns the agent without what learns, which knows of devices that another process does not have.

    Args:
        agent: to send.
        params: its parameters' shapes; all that is left of `init`.
    """
    if isinstance(agent, Agent):
        agent = agent._replace(gradient_steps=None, groups=())
    shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(params)]
    structure = jax.tree.structure(params)
    return agent._replace(init=partial(_init, structure, shapes), update=_learns_elsewhere)


def _init(structure: Any, shapes: list[tuple[tuple[int, ...], Any]], key: Any) -> LearnerState:
    """Returns parameters of the agent's shapes."""
    del key
    leaves = [jax.numpy.zeros(shape, dtype) for shape, dtype in shapes]
    return LearnerState(jax.tree.unflatten(structure, leaves), (), jax.numpy.int32(0))


def _learns_elsewhere(*_: Any) -> NoReturn:
    raise TypeError("an environment host acts: it neither initializes nor learns")
