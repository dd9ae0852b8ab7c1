"""Agents for processes that only act, and the settings of jax with which these compute what the learner's process would."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np

from agents.api import Agent, AnyAgent, LearnerState, Params
from envpool_bridge.shm.packed_arrays import ParamsLayout, params_layout
from jaxsrl.machine.cpu_dispatch import use_synchronous_cpu_dispatch

# Settings that change what a program computes: another process's must be the learner's.
_JAX_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")

AgentT = TypeVar("AgentT", bound=AnyAgent)


def acting_agent(agent: AgentT) -> AgentT:
    """Returns the agent without what learns, which knows of devices that another process does not have.

    All that is left of `init` are the shapes of its parameters (`params_shapes`).
    """
    # Without the shardings that a jitted `init` may give them: these name devices too.
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params_shapes(agent))
    if isinstance(agent, Agent):
        agent = agent._replace(gradient_steps=None, groups=())
    return agent._replace(init=partial(_init, shapes), update=_learns_elsewhere)


def params_shapes(agent: AnyAgent) -> Params:
    """Returns the parameters of an agent as `jax.ShapeDtypeStruct`s."""
    return jax.eval_shape(agent.init, jax.random.key(0)).params  # any key will do


def layout_of(params: Params) -> ParamsLayout:
    """Returns the layout of parameters (or of their shapes) in a flat buffer."""
    return params_layout([(leaf.shape, np.dtype(leaf.dtype).name) for leaf in jax.tree.leaves(params)])


def read_jax_settings() -> dict[str, Any]:
    """Returns the settings of this process that change results, by name."""
    return {name: getattr(jax.config, name) for name in _JAX_SETTINGS}


def use_jax_settings(settings: Mapping[str, Any]) -> None:
    """Sets up jax in a process that acts; `settings` are those of the learner's process (`read_jax_settings`)."""
    use_synchronous_cpu_dispatch()
    for name, value in settings.items():
        jax.config.update(name, value)


def _init(shapes: Params, key: Any) -> LearnerState:
    """Returns zeros as parameters of the agent's shapes."""
    del key
    params = jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), shapes)
    return LearnerState(params, (), jax.numpy.int32(0))


def _learns_elsewhere(*_: Any) -> NoReturn:
    raise TypeError("this process only acts: its agent does not learn")
