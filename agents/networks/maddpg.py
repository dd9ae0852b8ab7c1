"""Networks of MADDPG: a policy of each row's own observation, and a critic of the observations and actions of the whole team."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.distributions import make_legal
from agents.networks.team_branch import make_team_branch
from agents.networks.team_state import make_team_state, memoryless_config
from agents.ops.team_rows import by_agent, by_row
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec


class MaddpgNetworks(NamedTuple):
    """Bound to a team's spec; n agents, D numbers of each one's action, B = N n rows. Networks are feed-forward.

    Attributes:
        init_policy: Returns parameters of the policies; the key is consumed.
        policy: Maps (params, observation [B, ...]) to outputs [B, D].
        legal: Maps an observation to [..., D], 0 where a discrete action is illegal; None if all actions are always legal.
        init_critic: Returns parameters of the critics; the key is consumed.
        value: Maps (params, observation [B, ...], present [B] bool, actions [B, n, D] of all agents as input of the row's critic)
            to each row's value [B].
    """

    init_policy: Callable[[Array], Params]
    policy: Callable[[Params, Observation], Array]
    legal: Callable[[Observation], Array | None]
    init_critic: Callable[[Array], Params]
    value: Callable[[Params, Observation, Array, Array], Array]


def make_maddpg_networks(config: NetworkConfig, spec: EnvSpec, size: int, *, shared: bool) -> MaddpgNetworks:
    """Returns networks of one configuration.

    Args:
        config: Configuration of policy and critic.
        spec: Spec of the rows.
        size: D.
        shared: All agents have the same weights, and the index of the agent is an input; otherwise each has its own.

    Raises:
        UserError: If the torso does not fit the observations, or the mask does not fit the actions.
    """
    validate_read(config, "a team of deterministic policies", "critic_hidden_sizes")
    count = spec.rows_per_env
    policies = make_team_branch(config, spec, {"head": HeadSize(size, 0.01)}, shared=shared, without=spec.critic_only)
    state = make_team_state(spec, config.torso, always_observations=True)
    joint = {**state.spec.observation, "actions": ArraySpec((count * size,), "float32")}
    critic_spec = EnvSpec(spec.env_id, joint, spec.action, agents=spec.agents)
    critics = make_team_branch(
        memoryless_config(config.critic, critic_spec), critic_spec, {"value": HeadSize(1, 1.0)}, shared=shared
    )
    legal = make_legal(spec) if isinstance(spec.action, DiscreteSpec) else lambda observation: None

    def policy(params: Params, observation: Observation) -> Array:
        one_step = jax.tree.map(lambda leaf: leaf[None], observation)
        return policies.unroll(params, one_step, (), _no_firsts(observation))[0]["head"][0]

    def value(params: Params, observation: Observation, present: Array, actions: Array) -> Array:
        one_step = jax.tree.map(lambda leaf: leaf[None], observation)
        view = jax.tree.map(lambda leaf: _for_each(count, leaf), state.view(one_step, present[None]))
        view |= {"actions": actions.reshape((1, actions.shape[0], -1))}
        return critics.unroll(params, view, (), present[None])[0]["value"][0, :, 0]

    return MaddpgNetworks(policies.init, policy, legal, critics.init, value)


def joint_actions(count: int, own: Array, present: Array) -> Array:
    """Returns the actions of all agents of each row's environment, [B, n, D] of [B, D]; zeros of absent agents."""
    there = jnp.where(present[:, None], own, 0.0)
    by_env = by_agent(count, 0, there)
    return by_row(0, jnp.broadcast_to(by_env[:, None], (by_env.shape[0], count, *by_env.shape[1:])))


def with_own(count: int, actions: Array, own: Array) -> Array:
    """Returns `actions` [B, n, D] with the row's own one of the n replaced by `own` [B, D]."""
    is_own = jnp.arange(actions.shape[0])[:, None] % count == jnp.arange(count)
    return jnp.where(is_own[..., None], own[:, None], actions)


def _for_each(count: int, leaf: Array) -> Array:
    """Repeats [1, N, ...] as [1, N n, ...]: input of every agent's critic."""
    return by_row(1, jnp.broadcast_to(leaf[:, :, None], (*leaf.shape[:2], count, *leaf.shape[2:])))


def _no_firsts(observation: Observation) -> Array:
    return jnp.zeros((1, jax.tree.leaves(observation)[0].shape[0]), bool)
