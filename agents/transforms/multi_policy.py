"""Several policies in one environment. Each agent is mapped to a policy, which acts for it and learns or is frozen.

This is SRL's AgentSpec (Mei et al. 2024) as a composition of pure functions. The result is an ordinary Agent, so every plan can
run it. Rows are environment x agent (`EnvSpec.agents`); each policy uses a subset of them.
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
    ReplayAgent,
    Trajectory,
    UpdateFn,
)
from envpool_bridge.errors import UserError
from envpool_bridge.spec.padding import cut, padded_spec
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from envpool_bridge.spec.tree import map_leaves


@dataclasses.dataclass(frozen=True)
class PolicyGroup:
    """A policy and its agents.

    Attributes:
        name: Name of the policy.
        agent_indices: Indices of its agents in `EnvSpec.agents`.
        spec: Spec of its rows only.
        agent: Algorithm that acts and learns for them.
        params: Initial parameters; None: those of the algorithm.
        frozen: Whether its parameters never change.
    """

    name: str
    agent_indices: tuple[int, ...]
    spec: EnvSpec
    agent: AnyAgent
    params: Params = None
    frozen: bool = False


class LearningGroup(NamedTuple):
    """A learning policy of a multi-policy agent.

    Attributes:
        name: Name of the policy, and its key in `LearnerState.params`, `opt_state` and `extra`.
        agent_indices: Indices of its rows among the rows of each environment.
        rows_per_env: Number of agents of an environment.
        update: Updates its learner state (`policy_state`) from its rows [T, E * len(agent_indices), ...]. These are padded and have
            the extras and the recurrent state of every policy. The key and the metric names are those of the whole update.
    """

    name: str
    agent_indices: tuple[int, ...]
    rows_per_env: int
    update: UpdateFn


@dataclasses.dataclass(frozen=True)
class _MultiPolicy:
    spec: EnvSpec
    groups: tuple[PolicyGroup, ...]
    extras: Mapping[str, ArraySpec]


def agent_indices(spec: EnvSpec, mapping: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Returns the indices of each policy's agents.

    Args:
        spec: Spec of a multi-agent environment.
        mapping: Maps patterns of agents' names ("adversary_*") to names of policies; the first match counts.

    Raises:
        UserError: If an agent matches no pattern, or a pattern matches no agent.
    """
    names = [agent.name for agent in spec.agents]
    for pattern in mapping:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"{spec.env_id}: no agent is called {pattern!r}: expected names or patterns of {names}")
    indices: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        policy = next((value for pattern, value in mapping.items() if fnmatch.fnmatchcase(name, pattern)), None)
        if policy is None:
            raise UserError(
                f"{spec.env_id}: agent {name!r} has no policy: add a pattern for it (or '*') to {dict(mapping)}"
            )
        indices.setdefault(policy, []).append(index)
    return {policy: tuple(members) for policy, members in indices.items()}


def split_teams(spec: EnvSpec, first: str, option: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the indices of the agents of two teams of any sizes, in the order of the environment.

    Args:
        spec: Spec of a multi-agent environment.
        first: Pattern of the names of the first team's agents. "" splits by names without numbers, as of "hider_0", "hider_1" and
            "seeker_0"; if these are alike, into halves.
        option: Name of the option with the pattern, for messages.

    Raises:
        UserError: If a team has no agents, or the names do not show two teams.
    """
    names = [agent.name for agent in spec.agents]
    kinds = [name.rstrip("_0123456789") for name in names]
    if first:
        is_first = [fnmatch.fnmatchcase(name, first) for name in names]
    elif len(set(kinds)) == 2:
        is_first = [kind == kinds[0] for kind in kinds]
    elif len(set(kinds)) == 1 and len(names) % 2 == 0:
        is_first = [2 * index < len(names) for index in range(len(names))]
    else:
        raise UserError(
            f"{spec.env_id}: the names of the agents do not show two teams: got {', '.join(names) or 'one agent'}; name those of "
            f"one team by {option}, such as 'red_*'"
        )
    if len(set(is_first)) < 2:
        raise UserError(
            f"{spec.env_id}: {option} {first!r} must match some of the agents {', '.join(names)}, but not all"
        )
    members = [tuple(index for index, own in enumerate(is_first) if own == team) for team in (True, False)]
    return members[0], members[1]


def policy_spec(spec: EnvSpec, indices: Sequence[int]) -> EnvSpec:
    """Returns the spec of the rows of these agents, without padding for other agents.

    Raises:
        UserError: Their actions or masks differ, so one policy cannot act for them.
    """
    members = tuple(spec.agents[index] for index in indices)
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
    """Returns one Agent of several policies, with parameters, optimizer states, metrics and extras by the policy's name.

    Args:
        spec: Spec of all rows.
        groups: Policies; every agent of the environment is in exactly one.
    """
    covered = sorted(index for group in groups for index in group.agent_indices)
    if covered != list(range(spec.rows_per_env)):
        raise ValueError(f"every agent needs one policy: got agents {covered} of {spec.rows_per_env}")
    extras = {f"{group.name}/{name}": extra for group in groups for name, extra in group.agent.extras.items()}
    learning = tuple(
        LearningGroup(group.name, group.agent_indices, spec.rows_per_env, partial(_update_group, number, group))
        for number, group in enumerate(groups)
        if not group.frozen
    )
    data = [group.agent.data for group in groups if not group.frozen]
    lags = [own.max_lag for own in data if isinstance(own, OnPolicy) and own.max_lag is not None]
    return Agent(
        name="+".join(dict.fromkeys(group.agent.name for group in groups)),
        init=partial(_init, groups),
        initial_agent_state=partial(_initial_agent_state, groups),
        act=partial(_act, _MultiPolicy(spec, tuple(groups), extras)),
        update=partial(_update, learning),
        extras=extras,
        data=OnPolicy(max_lag=min(lags, default=None)),
        groups=learning,
        bind_replay=partial(_bind_replay, spec, groups) if any(map(_needs_buffer, groups)) else None,
    )


def _needs_buffer(group: PolicyGroup) -> bool:
    return isinstance(group.agent, ReplayAgent) and not group.frozen


def _bind_replay(
    spec: EnvSpec, groups: Sequence[PolicyGroup], with_buffer: Callable[[Any, Trajectory], Agent], shapes: Trajectory
) -> Agent:
    """Implements `Agent.bind_replay`: every policy that learns from replay has a buffer of its own rows."""

    def bound(number: int, group: PolicyGroup) -> PolicyGroup:
        if not _needs_buffer(group):
            return group
        select = partial(_group_rows, group.agent_indices, spec.rows_per_env)
        own = jax.eval_shape(lambda batch: _own_batch(number, group, select(batch)), shapes)
        return dataclasses.replace(group, agent=with_buffer(group.agent, own))

    return make_grouped(spec, [bound(number, group) for number, group in enumerate(groups)])


def policy_state(state: LearnerState, name: str) -> LearnerState:
    """Returns the learner state of one policy."""
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
    # Each policy's state has all rows, as all arrays of a slot have; rows of other policies are zeros.
    return tuple(group.agent.initial_agent_state(num_rows) for group in groups)


def _act(
    multi_policy: _MultiPolicy,
    params: Params,
    observation: Any,
    agent_state: AgentState,
    is_first: Array,
    keys: Array,
    mode: Mode,
) -> tuple[Any, dict[str, Array], AgentState]:
    """Acts with every policy for its own rows of [R, ...], R whole environments."""
    spec, groups = multi_policy.spec, multi_policy.groups
    rows = partial(select_rows, spec.rows_per_env, 0)
    actions: list[Any] = []
    recorded: list[dict[str, Array]] = []
    states: list[AgentState] = []
    for group, state in zip(groups, agent_state, strict=True):
        own_observation = cut(group.spec.observation, jax.tree.map(partial(rows, group.agent_indices), observation), 1)
        own_keys = rows(group.agent_indices, keys)
        own_state = jax.tree.map(partial(rows, group.agent_indices), state)
        action, added, own_state = group.agent.act(
            params[group.name], own_observation, own_state, rows(group.agent_indices, is_first), own_keys, mode
        )
        actions.append(map_leaves(_padded, spec.action, action))
        count = own_keys.shape[0]
        blank = {name: jnp.zeros((count, *extra.shape), extra.dtype) for name, extra in multi_policy.extras.items()}
        recorded.append(blank | {f"{group.name}/{name}": values for name, values in added.items()})
        states.append(jax.tree.map(partial(_spread_rows, spec.rows_per_env, group.agent_indices), own_state))
    join = partial(_join_rows, spec.rows_per_env, [group.agent_indices for group in groups])
    return jax.tree.map(join, *actions), jax.tree.map(join, *recorded), tuple(states)


def _update(
    groups: Sequence[LearningGroup], state: LearnerState, batch: Trajectory, key: Array
) -> tuple[LearnerState, Metrics]:
    """Updates every policy that is not frozen from its own rows of [T, B, ...]."""
    params, opt_state, extra = dict(state.params), dict(state.opt_state), dict(state.extra)
    metrics: Metrics = {}
    for group in groups:
        rows = _group_rows(group.agent_indices, group.rows_per_env, batch)
        learned, group_metrics = group.update(policy_state(state, group.name), rows, key)
        params[group.name], opt_state[group.name], extra[group.name] = learned.params, learned.opt_state, learned.extra
        metrics |= group_metrics
    return LearnerState(params, opt_state, state.num_updates + 1, extra), metrics


def _group_rows(indices: tuple[int, ...], rows_per_env: int, batch: Trajectory) -> Trajectory:
    steps = dataclasses.replace(batch, agent_state=())
    own = jax.tree.map(partial(select_rows, rows_per_env, 1, indices), steps)
    state = jax.tree.map(partial(select_rows, rows_per_env, 0, indices), batch.agent_state)
    return dataclasses.replace(own, agent_state=state)


def _update_group(
    number: int, group: PolicyGroup, state: LearnerState, batch: Trajectory, key: Array
) -> tuple[LearnerState, Metrics]:
    """Implements `LearningGroup.update` of policy `number`."""
    if isinstance(group.agent, ReplayAgent):
        raise TypeError(f"policy {group.name!r} learns from replay and has no buffer: call Agent.bind_replay first")
    own = _own_batch(number, group, batch)
    learned, metrics = group.agent.update(state, own, jax.random.fold_in(key, number))
    return learned, {f"{group.name}/{name}": value for name, value in metrics.items()}


def _own_batch(number: int, group: PolicyGroup, batch: Trajectory) -> Trajectory:
    """Returns rows of a policy without padding and without the extras and states of other policies."""
    return dataclasses.replace(
        batch,
        observation=cut(group.spec.observation, batch.observation, 2),
        action=cut(group.spec.action, batch.action, 2),
        extras={name: batch.extras[f"{group.name}/{name}"] for name in group.agent.extras},
        agent_state=batch.agent_state[number] if batch.agent_state else (),
    )


def select_rows(rows_per_env: int, axis: int, indices: tuple[int, ...], array: Array) -> Array:
    """Returns the rows of some agents, [.., E * len(indices), ...] of [.., E * rows_per_env, ...].

    Environments keep their order, so a rows axis that is sharded over environments needs no gather.
    """
    lead, rest = array.shape[:axis], array.shape[axis + 1 :]
    by_env = array.reshape((*lead, -1, rows_per_env, *rest))
    chosen = jnp.stack([by_env[(slice(None),) * (axis + 1) + (index,)] for index in indices], axis=axis + 1)
    return chosen.reshape((*lead, -1, *rest))


def _join_rows(rows_per_env: int, indices: Sequence[tuple[int, ...]], *parts: Array) -> Array:
    """Returns all rows [E * rows_per_env, ...] from each policy's rows [E * len(members), ...]."""
    columns: dict[int, Array] = {}
    for members, part in zip(indices, parts, strict=True):
        by_env = part.reshape((-1, len(members), *part.shape[1:]))
        columns |= {index: by_env[:, column] for column, index in enumerate(members)}
    joined = jnp.stack([columns[index] for index in range(rows_per_env)], axis=1)
    return joined.reshape((-1, *joined.shape[2:]))


def _spread_rows(rows_per_env: int, indices: tuple[int, ...], part: Array) -> Array:
    """Returns all rows [E * rows_per_env, ...] from one policy's rows [E * len(indices), ...], with zeros for other policies."""
    by_env = part.reshape((-1, len(indices), *part.shape[1:]))
    blank = jnp.zeros_like(by_env[:, 0])
    columns = [by_env[:, indices.index(index)] if index in indices else blank for index in range(rows_per_env)]
    return jnp.stack(columns, axis=1).reshape((-1, *part.shape[1:]))


def _padded(leaf: Any, values: Array) -> Array:
    """Returns actions of one policy, padded with zeros to the size of all rows."""
    missing = [(0, size - own) for size, own in zip(leaf.shape, values.shape[1:], strict=True)]
    return jnp.pad(values, [(0, 0), *missing])


MakeAgent = Callable[[EnvSpec], AnyAgent]


def make_policies(
    spec: EnvSpec,
    mapping: Mapping[str, str],
    make_agent: MakeAgent,
    frozen: Mapping[str, Params] | None = None,
    own_agents: Mapping[str, MakeAgent] | None = None,
) -> AnyAgent:
    """Returns an agent with a policy `make_agent(policy spec)` for each name in `mapping`; without a mapping, `make_agent(spec)`.

    Args:
        spec: Spec of all rows.
        mapping: Mapping of `agent_indices`; {} for one policy.
        make_agent: Makes the algorithm of one policy.
        frozen: Parameters of policies that do not learn, by name; None for the algorithm's initial ones.
        own_agents: Replace `make_agent` for policies with an algorithm or settings of their own, by name.

    Raises:
        UserError: If the mapping does not fit the environment, or lacks a policy that is frozen or has settings of its own.
    """
    frozen, own_agents = frozen or {}, own_agents or {}
    if not mapping:
        if frozen:
            raise UserError(f"policies {sorted(frozen)} cannot be frozen: no agent is mapped to them")
        if own_agents:
            raise UserError(f"policies {sorted(own_agents)} cannot have settings: no agent is mapped to them")
        return make_agent(policy_spec(spec, range(spec.rows_per_env)) if spec.agents else spec)
    if not spec.agents:
        raise UserError(
            f"{spec.env_id} has one agent: a mapping from agents to policies needs a multi-agent environment"
        )
    indices = agent_indices(spec, mapping)
    for names, verb in ((frozen, "be frozen"), (own_agents, "have settings")):
        if unknown := sorted(set(names) - set(indices)):
            raise UserError(f"policies {unknown} cannot {verb}: expected some of {sorted(indices)}")
    groups: list[PolicyGroup] = []
    for name, members in indices.items():
        own = policy_spec(spec, members)
        agent = own_agents.get(name, make_agent)(own)
        groups.append(PolicyGroup(name, members, own, agent, frozen.get(name), name in frozen))
    return make_grouped(spec, groups)
