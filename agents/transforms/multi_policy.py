"""Several policies in one environment: each agent of it is served and trained by the policy it is mapped to, or a frozen one.

SRL's AgentSpec (Mei et al. 2024) as a composition of pure functions: what comes out is an Agent like any other, so that every
distribution policy can run it. Rows are environment x agent (`EnvSpec.agents`); a policy's rows are cut out of them.
"""

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agents.api import (
    Agent,
    AgentState,
    AnyAgent,
    Array,
    LearnerState,
    Metrics,
    Mode,
    OnPolicy,
    Params,
    Trajectory,
    UpdateFn,
)
from envpool_bridge.errors import UserError
from envpool_bridge.spec.padding import cut, padded_spec
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from envpool_bridge.spec.tree import map_leaves


@dataclasses.dataclass(frozen=True)
class PolicyGroup:
    """The agents that one policy acts for.

    Attributes:
        name: of the policy.
        places: of its agents in `EnvSpec.agents`.
        spec: of its rows alone.
        agent: the algorithm that acts and learns for them.
        params: it begins with; None takes the algorithm's own.
        frozen: whether its parameters never change.
    """

    name: str
    places: tuple[int, ...]
    spec: EnvSpec
    agent: Agent
    params: Params = None
    frozen: bool = False


class LearningGroup(NamedTuple):
    """A policy that learns, as its own part of a grouped agent: which rows it needs, and what it does with them.

    Attributes:
        name: of the policy, and of its part in `LearnerState.params`, `opt_state` and `extra`.
        places: of its rows among the rows of each environment.
        rows_per_env: agents of an environment.
        update: of its own part of the learner state (`part_of`) from its rows alone, [T, E * len(places), ...], which are as
            all rows are: padded, with the extras and the remembered state of every policy. The key is that of the whole update;
            so are the names of the metrics.
    """

    name: str
    places: tuple[int, ...]
    rows_per_env: int
    update: UpdateFn


@dataclasses.dataclass(frozen=True)
class _Together:
    spec: EnvSpec
    groups: tuple[PolicyGroup, ...]
    extras: Mapping[str, ArraySpec]


def places_of_policies(spec: EnvSpec, mapping: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Which agents each policy acts for.

    Args:
        spec: of a multi-agent environment.
        mapping: from patterns of agents' names ("adversary_*") to names of policies; the first that fits counts.

    Raises:
        UserError: an agent fits no pattern, or a pattern fits no agent.
    """
    names = [agent.name for agent in spec.agents]
    for pattern in mapping:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"{spec.env_id}: no agent is called {pattern!r}: expected names or patterns of {names}")
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        found = next((policy for pattern, policy in mapping.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if found is None:
            raise UserError(
                f"{spec.env_id}: agent {name!r} has no policy: add a pattern for it (or '*') to {dict(mapping)}"
            )
        places.setdefault(found, []).append(place)
    return {policy: tuple(found) for policy, found in places.items()}


def spec_of_policy(spec: EnvSpec, places: Sequence[int]) -> EnvSpec:
    """What the rows of these agents look like without the padding that only other agents need.

    Raises:
        UserError: their actions or masks differ, so that one policy cannot choose for them.
    """
    members = tuple(spec.agents[place] for place in places)
    names = [agent.name for agent in members]
    if any((agent.action, agent.action_mask) != (members[0].action, members[0].action_mask) for agent in members):
        raise UserError(
            f"{spec.env_id}: agents {names} have different actions, so one policy cannot choose for all of them: map them to "
            f"policies of their own"
        )
    observation = padded_spec("observation", names, [agent.observation for agent in members])
    return dataclasses.replace(
        spec, observation=observation, action=members[0].action, action_mask=members[0].action_mask, agents=members
    )


def make_grouped(spec: EnvSpec, groups: Sequence[PolicyGroup]) -> Agent:
    """Returns one Agent of several policies: parameters, optimizer states and metrics are by the policy's name.

    Args:
        spec: of all rows.
        groups: every agent of the environment in exactly one.
    """
    covered = sorted(place for group in groups for place in group.places)
    if covered != list(range(spec.rows_per_env)):
        raise ValueError(f"every agent needs one policy: got places {covered} of {spec.rows_per_env}")
    extras = {name: extra for group in groups for name, extra in group.agent.extras.items()}
    learning = tuple(
        LearningGroup(group.name, group.places, spec.rows_per_env, partial(_update_group, number, group))
        for number, group in enumerate(groups)
        if not group.frozen
    )
    return Agent(
        name="+".join(dict.fromkeys(group.agent.name for group in groups)),
        init=partial(_init, groups),
        initial_agent_state=partial(_initial_agent_state, groups),
        act=partial(_act, _Together(spec, tuple(groups), extras)),
        update=partial(_update, learning),
        extras=extras,
        data=OnPolicy(),
        groups=learning,
    )


def part_of(state: LearnerState, name: str) -> LearnerState:
    """What one policy carries of a grouped agent's state."""
    return LearnerState(state.params[name], state.opt_state[name], state.num_updates, state.extra[name])


def _init(groups: Sequence[PolicyGroup], key: Array) -> LearnerState:
    keys = jax.random.split(key, len(groups))
    states = {group.name: group.agent.init(group_key) for group, group_key in zip(groups, keys, strict=True)}
    params = {group.name: states[group.name].params if group.params is None else group.params for group in groups}
    return LearnerState(
        params=params,
        opt_state={group.name: () if group.frozen else states[group.name].opt_state for group in groups},
        num_updates=jnp.zeros((), jnp.int32),
        extra={group.name: () if group.frozen else states[group.name].extra for group in groups},
    )


def _initial_agent_state(groups: Sequence[PolicyGroup], num_rows: int) -> AgentState:
    # Of all rows for each policy, as everything that a slot keeps has all rows; zeros stand where others act.
    return tuple(group.agent.initial_agent_state(num_rows) for group in groups)


def _act(
    together: _Together,
    params: Params,
    observation: Any,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Any, dict[str, Array], AgentState]:
    """Returns every policy acts for its own rows of [R, ...], R whole environments."""
    spec, groups = together.spec, together.groups
    rows = partial(_rows_of, spec.rows_per_env, 0)
    actions: list[Any] = []
    recorded: list[dict[str, Array]] = []
    states: list[AgentState] = []
    for group, state in zip(groups, agent_state, strict=True):
        seen = cut(group.spec.observation, jax.tree.map(partial(rows, group.places), observation), 1)
        own_keys = rows(group.places, keys)
        own_state = jax.tree.map(partial(rows, group.places), state)
        action, added, own_state = group.agent.act(
            params[group.name], seen, own_state, rows(group.places, is_first), own_keys, mode
        )
        actions.append(map_leaves(_padded, spec.action, action))
        count = own_keys.shape[0]
        blank = {name: jnp.zeros((count, *extra.shape), extra.dtype) for name, extra in together.extras.items()}
        recorded.append(blank | added)
        states.append(jax.tree.map(partial(_spread_rows, spec.rows_per_env, group.places), own_state))
    join = partial(_join_rows, spec.rows_per_env, [group.places for group in groups])
    return jax.tree.map(join, *actions), jax.tree.map(join, *recorded), tuple(states)


def _update(
    groups: Sequence[LearningGroup], state: LearnerState, batch: Trajectory, key: Array
) -> tuple[LearnerState, Metrics]:
    """Returns every policy that is not frozen learns from its own rows of [T, B, ...]."""
    params, opt_state, extra = dict(state.params), dict(state.opt_state), dict(state.extra)
    metrics: Metrics = {}
    for group in groups:
        learnt, found = group.update(part_of(state, group.name), _rows_of_group(group, batch), key)
        params[group.name], opt_state[group.name], extra[group.name] = learnt.params, learnt.opt_state, learnt.extra
        metrics |= found
    return LearnerState(params, opt_state, state.num_updates + 1, extra), metrics


def _rows_of_group(group: LearningGroup, batch: Trajectory) -> Trajectory:
    steps = dataclasses.replace(batch, agent_state=())
    own = jax.tree.map(partial(_rows_of, group.rows_per_env, 1, group.places), steps)
    state = jax.tree.map(partial(_rows_of, group.rows_per_env, 0, group.places), batch.agent_state)
    return dataclasses.replace(own, agent_state=state)


def _update_group(
    number: int, group: PolicyGroup, state: LearnerState, batch: Trajectory, key: Array
) -> tuple[LearnerState, Metrics]:
    """`LearningGroup.update` of policy `number`."""
    own = dataclasses.replace(
        batch,
        observation=cut(group.spec.observation, batch.observation, 2),
        action=cut(group.spec.action, batch.action, 2),
        extras={name: batch.extras[name] for name in group.agent.extras},
        agent_state=batch.agent_state[number] if batch.agent_state else (),
    )
    learnt, found = group.agent.update(state, own, jax.random.fold_in(key, number))
    return learnt, {f"{group.name}/{name}": value for name, value in found.items()}


def _rows_of(rows_per_env: int, axis: int, places: tuple[int, ...], array: Array) -> Array:
    """Returns the rows of some agents, [.., E * len(places), ...] of [.., E * rows_per_env, ...].

    Environments stay where they are, so that nothing is gathered where the rows axis is sharded over them.
    """
    lead, rest = array.shape[:axis], array.shape[axis + 1 :]
    by_env = array.reshape((*lead, -1, rows_per_env, *rest))
    chosen = jnp.stack([by_env[(slice(None),) * (axis + 1) + (place,)] for place in places], axis=axis + 1)
    return chosen.reshape((*lead, -1, *rest))


def _join_rows(rows_per_env: int, places: Sequence[tuple[int, ...]], *parts: Array) -> Array:
    """[E * rows_per_env, ...] of each policy's [E * len(places), ...]."""
    columns: dict[int, Array] = {}
    for members, part in zip(places, parts, strict=True):
        by_env = part.reshape((-1, len(members), *part.shape[1:]))
        columns |= {place: by_env[:, index] for index, place in enumerate(members)}
    joined = jnp.stack([columns[place] for place in range(rows_per_env)], axis=1)
    return joined.reshape((-1, *joined.shape[2:]))


def _spread_rows(rows_per_env: int, places: tuple[int, ...], part: Array) -> Array:
    """[E * rows_per_env, ...] of one policy's [E * len(places), ...]; zeros in the rows of others."""
    by_env = part.reshape((-1, len(places), *part.shape[1:]))
    blank = jnp.zeros_like(by_env[:, 0])
    columns = [by_env[:, places.index(place)] if place in places else blank for place in range(rows_per_env)]
    return jnp.stack(columns, axis=1).reshape((-1, *part.shape[1:]))


def _padded(leaf: Any, values: Array) -> Array:
    """Actions of one policy with zeros where only other agents have more."""
    missing = [(0, size - own) for size, own in zip(leaf.shape, values.shape[1:], strict=True)]
    return jnp.pad(values, [(0, 0), *missing])


MakeAgent = Callable[[EnvSpec], AnyAgent]


def make_policies(
    spec: EnvSpec,
    mapping: Mapping[str, str],
    make_agent: MakeAgent,
    frozen: Mapping[str, Params] | None = None,
) -> AnyAgent:
    """Returns an agent in which each policy of `mapping` is `make_agent(its spec)`; without a mapping, `make_agent(spec)` acts for all.

    Args:
        spec: of all rows.
        mapping: see `places_of_policies`; {} for one policy.
        make_agent: makes the algorithm of one policy.
        frozen: parameters of policies that do not learn, by name; None for an algorithm's own first ones.

    Raises:
        UserError: the mapping does not fit the environment, names a frozen policy that it does not have, or is for agents that
            learn from replay.
    """
    if not mapping:
        if frozen:
            raise UserError(f"policies {sorted(frozen)} cannot be frozen: no agent is mapped to them")
        return make_agent(spec_of_policy(spec, range(spec.rows_per_env)) if spec.agents else spec)
    if not spec.agents:
        raise UserError(
            f"{spec.env_id} has one agent: a mapping from agents to policies needs a multi-agent environment"
        )
    frozen = frozen or {}
    places = places_of_policies(spec, mapping)
    unknown = sorted(set(frozen) - set(places))
    if unknown:
        raise UserError(f"policies {unknown} cannot be frozen: expected some of {sorted(places)}")
    groups: list[PolicyGroup] = []
    for name, members in places.items():
        own = spec_of_policy(spec, members)
        agent = make_agent(own)
        if not isinstance(agent, Agent):
            raise UserError(
                f"policy {name!r}: {agent.name} learns from replay, which policies that are mapped to agents cannot share: "
                f"expected an agent that learns from each trajectory once (ppo, say), or no mapping, so that one acts for all"
            )
        groups.append(PolicyGroup(name, members, own, agent, frozen.get(name), name in frozen))
    return make_grouped(spec, groups)
