"""Compilation time and run time of agents' programs on CPUs, at each level of optimization.

python docs/lab/compile_levels.py

Both are CPU seconds of this process, so that other work on the machine matters little. Levels are those of XLA's option
`xla_backend_optimization_level`; `jaxsrl.machine.compiler_options` chooses 2.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from agents import dreamer
from agents.api import Agent, Mode
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from agents.world_models.sizes import WorldModelConfig
from jaxsrl import EnvConfig
from jaxsrl.collect.slot_layout import trajectory_shapes

ROWS, STEPS, CALLS = 32, 32, 5


def measure(name: str, program: Callable[..., Any], *arguments: Any) -> None:
    """Prints a line for each level."""
    lowered = jax.jit(program).lower(*arguments)
    for level in (3, 2, 1):
        start = time.process_time()
        compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": level})
        compilation = time.process_time() - start
        jax.block_until_ready(compiled(*arguments))
        calls: list[float] = []
        for _ in range(CALLS):
            start = time.process_time()
            jax.block_until_ready(compiled(*arguments))
            calls.append(time.process_time() - start)
        print(f"{name}, level {level}: {compilation:.2f} s to compile, {1000 * min(calls):.2f} ms to run", flush=True)  # noqa: T201


def zeros(agent: Any, spec: Any, rows: int, steps: int) -> Any:
    """Returns a trajectory of zeros."""
    shapes = trajectory_shapes(agent, spec, rows, steps)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def measure_ppo() -> None:
    """Measures initialization, acting and an update of PPO on CartPole."""
    spec, key = EnvConfig("CartPole-v1").source().spec(), jax.random.key(0)
    agent: Agent = make_ppo(PPOConfig(num_epochs=10, num_minibatches=4), spec, NetworkConfig(hidden_sizes=(64, 64)))
    state, trajectory = jax.jit(agent.init)(key), zeros(agent, spec, ROWS, STEPS)
    keys, first = jax.random.split(key, ROWS), jnp.zeros(ROWS, bool)
    observation = trajectory.observation[0]

    def act(params: Any, observation: Any, first: Any, keys: Any) -> Any:
        return agent.act(params, observation, (), first, keys, Mode.SAMPLE)

    measure("PPO's init", agent.init, key)
    measure("PPO's act", act, state.params, observation, first, keys)
    measure("PPO's update", agent.update, state, trajectory, key)


def measure_dreamer() -> None:
    """Measures the gradient of Dreamer's losses, of the settings of `dreamer_dmc`."""
    spec, key = EnvConfig("Pendulum-v1").source().spec(), jax.random.key(0)
    config = dreamer.DreamerConfig(model=WorldModelConfig("1m"), sequence_length=32, imagine_last=8)
    agent = dreamer.make_dreamer(config, spec, NetworkConfig())
    bound = dreamer.build_dreamer(config, spec, NetworkConfig())
    state, window = dreamer.init(bound, key), zeros(agent, spec, 16, config.burn_in + config.sequence_length)
    params = {**state.params, **state.extra.other_params}

    def gradient(params: Any, extra: Any, window: Any, key: Any) -> Any:
        return jax.grad(lambda params: dreamer.loss(bound, params, extra, window, key)[0])(params)

    measure("Dreamer's gradient", gradient, params, state.extra, window, key)


if __name__ == "__main__":
    measure_ppo()
    measure_dreamer()
