"""Gradient steps per second of Dreamer, its parts, and those of the published code.

python docs/lab/dreamer_speed.py [SIZE [K [STEPS [UNROLL]]]]
PYTHON docs/lab/dreamer_speed.py [SIZE [K [STEPS]]] --published DIRECTORY

The second command measures a checkout of github.com/danijar/dreamerv3; PYTHON has what that code requires, without jaxsrl. Both
learn from 16 random windows of 64 steps of 3 numbers and one continuous action, in float32, and imagine from the last K states.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import numpy as np

ROWS, LENGTH, NUMBERS = 16, 64, 3


def random_steps(rng: np.random.Generator, *shape: int) -> dict[str, np.ndarray]:
    """Returns observations, actions and rewards of windows in the middle of episodes."""
    return {
        "vector": rng.normal(size=(*shape, NUMBERS)).astype(np.float32),
        "action": rng.uniform(-1, 1, (*shape, 1)).astype(np.float32),
        "reward": rng.normal(size=shape).astype(np.float32),
    }


def rate(step: Callable[[int], Any], steps: int) -> float:
    """Returns calls per second. Each call depends on the one before; the first two are not counted."""
    for number in range(2):
        jax.block_until_ready(step(number))
    start, last = time.perf_counter(), None
    for number in range(steps):
        last = step(number)
    jax.block_until_ready(last)
    return steps / (time.perf_counter() - start)


def ours(size: str, num_starts: int, steps: int, unroll: int) -> dict[str, float]:
    """Returns the rate of whole gradient steps, and of two parts of one."""
    import jax.numpy as jnp

    from agents import dreamer
    from agents.api import LearnerState, Sample, Trajectory
    from agents.networks.config import NetworkConfig
    from agents.world_models.model import arrivals, model_losses
    from agents.world_models.sizes import WorldModelConfig
    from agents.world_models.windows import initial_state, observe_window
    from jaxsrl import EnvConfig

    config = dreamer.DreamerConfig(
        model=WorldModelConfig(cast(Any, size), unroll=unroll),
        burn_in=0,
        sequence_length=LENGTH,
        imagine_last=num_starts or None,
    )
    bound = dreamer.build_dreamer(config, EnvConfig("Pendulum-v1").source().spec(), NetworkConfig())
    drawn = random_steps(np.random.default_rng(0), LENGTH + 1, ROWS)
    flags = jnp.zeros((LENGTH + 1, ROWS), bool)
    window = Trajectory(
        observation=jnp.asarray(drawn["vector"]),
        is_first=flags,
        action=jnp.asarray(drawn["action"][:-1]),
        reward=jnp.asarray(drawn["reward"][:-1]),
        terminated=flags[:-1],
        truncated=flags[:-1],
        valid=~flags[:-1],
        policy_version=jnp.zeros((LENGTH, ROWS), jnp.int32),
        extras={},
        agent_state=initial_state(bound.model, ROWS),
    )
    state = dreamer.init(bound, jax.random.key(0))
    params: dict[str, Any] = {**state.params, **state.extra.other_params}

    def model_loss(params: dict[str, Any], key: Any) -> Any:
        observed = observe_window(bound.model, params, window, 0, key)
        losses = model_losses(
            bound.model, params, observed, arrivals(window), discount=config.discount, free_nats=config.free_nats
        )
        return sum(loss.mean() for loss in losses.values())

    def whole_loss(params: dict[str, Any], key: Any) -> Any:
        return dreamer.loss(bound, params, state.extra, window, key)[0]

    sample = Sample(window, jnp.ones(ROWS), jnp.asarray(ROWS))
    update = jax.jit(lambda state, key: dreamer.update(bound, state, sample, key)[0])
    newest: list[LearnerState] = [state]

    def step(number: int) -> Any:
        newest[0] = update(newest[0], jax.random.key(number))
        return newest[0]

    parts = {"model": model_loss, "model_and_behavior": whole_loss}
    programs = {f"{name}_gradients": jax.jit(jax.grad(loss)) for name, loss in parts.items()}
    calls = {name: partial(_call, program, params) for name, program in programs.items()}
    return {"gradient_steps": rate(step, steps), **{name: rate(call, steps) for name, call in calls.items()}}


def _call(program: Callable[..., Any], params: Any, number: int) -> Any:
    return program(params, jax.random.key(number))


def published(directory: str, size: str, num_starts: int, steps: int, _: int) -> dict[str, float]:
    """Returns the rate of the published code's `Agent.train`."""
    sys.path.insert(0, directory)
    import elements  # pyright: ignore[reportMissingImports]
    from dreamerv3.agent import Agent  # pyright: ignore[reportMissingImports]
    from ruamel import yaml  # pyright: ignore[reportMissingImports]

    with open(f"{directory}/dreamerv3/configs.yaml") as file:
        settings = yaml.YAML(typ="safe").load(file)
    config = elements.Config(settings["defaults"]).update(settings[f"size{size}"])
    config = config.update({"agent.imag_last": num_starts, "jax.platform": "cpu", "jax.compute_dtype": "float32"})
    program = {**config.jax, "prealloc": False, "profiler": False, "enable_policy": False, "precompile": False}
    lengths = {"batch_size": ROWS, "batch_length": LENGTH, "report_length": LENGTH, "replay_context": 0}
    names = {"logdir": "unused", "seed": 0, "replica": 0, "replicas": 1}
    space, flags = elements.Space, dict.fromkeys(("is_first", "is_last", "is_terminal"), elements.Space(bool))
    observation = {"vector": space(np.float32, (NUMBERS,)), "reward": space(np.float32), **flags}
    action = {"action": space(np.float32, (1,), -1, 1)}
    agent = Agent(observation, action, elements.Config(**config.agent, jax=program, **lengths, **names))
    batch: dict[str, Any] = {
        **random_steps(np.random.default_rng(0), ROWS, LENGTH),
        **{name: np.zeros((ROWS, LENGTH), bool) for name in flags},
        "consec": np.zeros((ROWS, LENGTH), np.int32),
        "stepid": np.zeros((ROWS, LENGTH, 20), np.uint8),
    }
    batch = {name: jax.device_put(values, agent.train_sharded) for name, values in batch.items()}
    carry = [agent.init_train(ROWS)]

    def step(number: int) -> Any:
        seed = agent._seeds(number, agent.train_mirrored)
        carry[0] = agent.train(carry[0], {**batch, "seed": seed})[0]
        return agent.params

    return {"gradient_steps": rate(step, steps)}


if __name__ == "__main__":
    *given, last = sys.argv[1:] or [""]
    is_published = len(given) > 0 and given[-1] == "--published"
    values = given[:-1] if is_published else sys.argv[1:]
    size, num_starts, steps, unroll = (*values, *("1m", "8", "20", "1")[len(values) :])
    measure = partial(published, last) if is_published else ours
    for name, measured in measure(size, int(num_starts), int(steps), int(unroll)).items():
        print(f"{name:>30} {measured:.3f} a second")  # noqa: T201
