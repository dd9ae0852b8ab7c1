"""Every field of an algorithm's configuration and network changes what the agent computes, or another value is rejected.

An agent is its traced programs: first state, update, actions. A field acts if another value of it changes a program or its
constants. Metrics do not count, and neither do operations that only metrics need.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

from agents.api import AnyAgent, Mode, ReplayAgent, ReplayConfig, Trajectory
from agents.catalog import AGENTS
from agents.networks.config import NetworkConfig
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, EnvSpec
from tests.contract.replaying_agents import NETWORKS, OBSERVATION, REPLAYING, SIZES, SMALL, WINDOWS, sample_for, spec_of
from tests.support.other_values import changes

STEPS, ROWS = 8, 4
FILLED = {"total_updates": 10, "rollout_length": STEPS, "num_rows": ROWS}  # by the run: `agents.catalog.fill_sizes`
RUNTIME = {
    "replay.batch_size": "sizes.py",
    "replay.capacity": "sizes.py",
    "replay.gradient_steps_per_env_step": "schedule.py",
    "replay.min_size": "schedule.py",
    "replay.priority_delay": "prefetch.py",
    "replay.priority_exponent": "device/sampler.py",
    "replay.priority_offset": "device/sampler.py",
}
"""Fields that the runtime reads, and where in `jaxsrl/replay`."""
IN_SUITE = ("a2c", "dqn", "ppo", "qmix", "reinforce", "sac")
BOX = ArraySpec((2,), "float32", -2.0, 2.0)
PRIORITIZED = ReplayConfig(batch_size=WINDOWS, priority_exponent=0.6)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc continuous": ("bc", {"action": BOX}),
    "dqn rainbow": ("dqn", {"replay": PRIORITIZED, "value_type": "c51", "noisy": True, "dueling": True}),
    "impala continuous": ("impala", {"action": BOX, "network": {"log_std": "state"}}),
    "muzero continuous": ("muzero", {"action": BOX, "search": "puct", "consistency_coef": 1.0, "replay": PRIORITIZED}),
    "ppg continuous": ("ppg", {"action": BOX}),
    "ppo continuous": ("ppo", {"action": BOX, "targets": "vtrace", "value_normalization": "popart"}),
    "ppo recurrent": (
        "ppo",
        {
            "network": {"core": "gtrxl", "core_size": 4, "core_heads": 2, "core_memory": 2},
            "chunk_length": 4,
            "num_minibatches": 2,
            "normalization": NormalizationConfig(observations=True, rewards=True),
        },
    ),
    "qmix recurrent": ("qmix", {"network": {"core": "gru", "core_size": 4}, "sequence_length": 2}),
    "sac noise": ("sac", {"replay": PRIORITIZED, "network": {"sde_period": 4}}),
}
"""With settings that decide about others."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Case(NamedTuple):
    """An algorithm of the catalogue, bound."""

    name: str
    config: Any
    network: NetworkConfig
    spec: EnvSpec


def case_of(name: str, action: Any = None, network: Any = None, **settings: Any) -> Case:
    """An algorithm with its defaults, but for sizes of a small environment, and other settings."""
    algorithm, spec = AGENTS[name], spec_of(name)
    known = {field.name for field in dataclasses.fields(algorithm.config)}
    sizes: dict[str, Any] = {key: value for key, value in FILLED.items() if key in known}
    if name == "ppg":
        sizes |= {"num_policy_phases": 1, "num_auxiliary_minibatches": 4}
    if name in REPLAYING:
        sizes |= {"replay": ReplayConfig(batch_size=WINDOWS), **SMALL.get(name, {})}
    if algorithm.acts_for_teams and not spec.agents:
        members = tuple(AgentSpec(member, spec.observation, spec.action) for member in ("a", "b"))
        spec = dataclasses.replace(spec, agents=members)
    spec = spec if action is None else dataclasses.replace(spec, action=action)
    shape = NetworkConfig(**{**NETWORKS.get(name, SIZES), **(network or {})})
    return Case(name, algorithm.config(**{**sizes, **settings}), shape, spec)


def other_cases(case: Case) -> Iterator[tuple[str, list[Case]]]:
    """Each field's name, and the algorithm with other values of it that its configuration accepts."""
    for field, values in changes(case.network):
        yield f"network.{field}", [case._replace(network=new) for new in replaced(case.network, field, values)]
    for field, values in changes(case.config):
        if field not in FILLED:
            yield field, [case._replace(config=new) for new in replaced(case.config, field, values)]
    for outer in dataclasses.fields(case.config):
        nested = getattr(case.config, outer.name)
        for field, values in changes(nested) if dataclasses.is_dataclass(nested) else ():
            configs = replaced(case.config, outer.name, replaced(nested, field, values))
            yield f"{outer.name}.{field}", [case._replace(config=new) for new in configs]


def replaced(config: Any, field: str, values: Any) -> Iterator[Any]:
    """The configuration with the values that it accepts."""
    for value in values:
        try:
            yield dataclasses.replace(config, **{field: value})
        except (UserError, TypeError):
            continue


def programs(case: Case) -> dict[str, Callable[[], Any]]:
    """Functions that return the parts of an agent as text, by name."""
    agent: AnyAgent = AGENTS[case.name].make(case.config, case.spec, case.network)
    key = jax.eval_shape(lambda: jax.random.key(0))
    init, state = traced(agent.init, key)
    batch: Any = sample_for(case.name, agent) if isinstance(agent, ReplayAgent) else trajectory_for(case, agent)
    steps: Trajectory = getattr(batch, "trajectory", batch)
    if isinstance(case.spec.action, ArraySpec) and steps.action.ndim == 2:  # a sample of discrete actions
        steps = dataclasses.replace(steps, action=np.zeros((*steps.action.shape, *case.spec.action.shape), np.float32))
        batch = dataclasses.replace(batch, trajectory=steps)
    rows = steps.valid.shape[1]
    initial, memory = traced(lambda: agent.initial_agent_state(rows))
    observation = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), steps.observation)
    keys, first = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows)), np.ones(rows, bool)
    act: Any = agent.act
    parts: dict[str, Callable[[], Any]] = {
        "data": lambda: repr({key: value for key, value in vars(agent.data).items() if isinstance(value, int | str)}),
        "init": lambda: (init, initial),
        "update": lambda: traced(
            lambda *args: [part for index, part in enumerate(agent.update(*args)) if index != 1], state, batch, key
        )[0],
    }
    for mode in Mode:
        parts[mode.name] = functools.partial(
            traced, functools.partial(act, mode=mode), state.params, observation, memory, first, keys
        )
    if not isinstance(agent, ReplayAgent):
        return parts
    if agent.data.sync_acting_params is not None:
        parts["sync"] = functools.partial(traced, agent.data.sync_acting_params, state)
    if agent.data.initial_priority is not None:
        parts["priority"] = functools.partial(
            traced, agent.data.initial_priority, dataclasses.replace(steps, observation=())
        )
    for index, transform in enumerate(agent.data.transforms):
        parts[f"transform {index}"] = functools.partial(traced, transform, state.params, state.extra, batch, key)
    return parts


def traced(function: Any, *args: Any) -> tuple[str, Any]:
    """The program that computes the results, with its constants, as text; and the shapes of its results."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    jaxpr, used, _ = partial_eval.dce_jaxpr_consts(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    constants = [const for const, is_used in zip(closed.consts, used, strict=True) if is_used]
    return _ADDRESS.sub("", f"{jaxpr} {[as_bytes(const) for const in (*constants, *inner_constants(jaxpr))]}"), shapes


def inner_constants(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from inner_constants(part)
    elif hasattr(value, "consts"):
        yield from value.consts
        yield from inner_constants(value.jaxpr)
    elif hasattr(value, "eqns"):
        for equation in value.eqns:
            yield from inner_constants(tuple(equation.params.values()))


def as_bytes(constant: Any) -> bytes:
    is_key = jnp.issubdtype(constant.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(constant) if is_key else constant).tobytes()


def trajectory_for(case: Case, agent: AnyAgent) -> Trajectory:
    def steps(shape: Any, dtype: Any, count: int = STEPS) -> Any:
        return jax.ShapeDtypeStruct((count, ROWS, *shape), dtype)

    action, flag = case.spec.action, steps((), bool)
    return Trajectory(
        observation=steps(OBSERVATION.shape, np.float32, STEPS + 1),
        is_first=steps((), bool, STEPS + 1),
        action=steps(action.shape, np.float32) if isinstance(action, ArraySpec) else steps((), np.int32),
        reward=steps((), np.float32),
        terminated=flag,
        truncated=flag,
        valid=flag,
        policy_version=steps((), np.int32),
        extras={key: steps(spec.shape, spec.dtype) for key, spec in agent.extras.items()},
        agent_state=jax.eval_shape(lambda: agent.initial_agent_state(ROWS)),
    )


def effects(case: Case) -> Iterator[tuple[str, str]]:
    """Each field, and "acts", "refused", "runtime" or "none"."""
    usual = {name: functools.cache(part) for name, part in programs(case).items()}

    def effect(field: str, other: Case) -> str:
        parts = programs(other)
        if field in RUNTIME:
            return "runtime"
        if parts.keys() != usual.keys():
            return "acts"
        # That of the network changes small programs, too.
        names = sorted(parts, key="update".__eq__) if field.startswith("network") else parts
        return "acts" if any(parts[name]() != usual[name]() for name in names) else "none"

    for field, others in other_cases(case):
        outcomes = {"refused"}
        for other in others:
            try:
                outcomes.add(effect(field, other))
            except UserError:
                continue
            if outcomes & {"acts", "runtime"}:
                break
        yield field, min(outcomes - {"refused"}, default="refused")  # in this order


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_SUITE else pytest.mark.slow) for name in (*AGENTS, *VARIANTS)]
)
def test_every_field_acts_or_is_rejected(name):
    agent, settings = VARIANTS.get(name, (name, {}))
    found = dict(effects(case_of(agent, **settings)))
    assert [field for field, effect in found.items() if effect == "none"] == []
    assert list(found.values()).count("acts") > 10


@pytest.mark.parametrize("field", RUNTIME)
def test_the_runtime_reads_its_fields(field):
    source = Path(__file__).parents[2] / "jaxsrl" / "replay" / RUNTIME[field]
    assert f".{field.partition('.')[2]}" in source.read_text()
