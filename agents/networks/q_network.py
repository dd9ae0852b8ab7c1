"""Q-networks, feed-forward or recurrent, as pure functions of parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, InitialAgentStateFn, Observation, Params
from agents.networks.config import NetworkConfig, validate_read
from agents.networks.cores.recurrent import Core, make_core
from agents.networks.distributions import make_legal
from agents.networks.observation_inputs import ObservationInputs, make_inputs, validate_torso
from agents.networks.q_head import QHead
from agents.networks.torsos.torso import TORSOS, Images, apply_torso
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec
from envpool_bridge.spec.tree import items, shown_path


class QOptions(NamedTuple):
    """Attributes: num_outputs: K of each action; dueling: two streams; noisy_sigma: sigma of noisy layers, None for plain ones."""

    num_outputs: int = 1
    dueling: bool = False
    noisy_sigma: float | None = None


class QNetwork(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        init: Returns parameters; the key is consumed.
        outputs: Maps (params, observation [..., *leaf], noise) to outputs [..., A, K]; a recurrent network raises TypeError. The
            noise is the `keys` of `NoisyDense`: one, [B], or None.
        unroll: Maps (params, observation [T, B, ...], state [B, ...] each, is_first [T, B] bool, noise) to outputs [T, B, A, K] and
            the next state; works for all networks.
        initial_state: Initial recurrent state of a number of rows; () without memory.
        legal: Maps (params, observation [..., *leaf]) to [..., A], 0 where an action is illegal; None if all are always legal.
        num_actions: A.
        is_recurrent: Whether the network is recurrent.
    """

    init: Callable[[Array], Params]
    outputs: Callable[[Params, Observation, Array | None], Array]
    unroll: Callable[[Params, Observation, AgentState, Array, Array | None], tuple[Array, AgentState]]
    initial_state: InitialAgentStateFn
    legal: Callable[[Params, Observation], Array | None]
    num_actions: int
    is_recurrent: bool

    def step(
        self, params: Params, observation: Observation, state: AgentState, is_first: Array, noise: Array | None
    ) -> tuple[Array, AgentState]:
        """Returns [B, A, K] of one step of B rows and the next state; arguments are those of `unroll` without T."""
        if not self.is_recurrent:
            return self.outputs(params, observation, noise), state
        steps, first = jax.tree.map(lambda leaf: leaf[None], (observation, is_first))
        outputs, state = self.unroll(params, steps, state, first, noise)
        return outputs[0], state


class _Features(nn.Module):
    """A torso. `cut`: omit the last layer of a torso of one array, since the head's streams replace it."""

    config: NetworkConfig
    images: Images
    cut: bool

    @nn.compact
    def __call__(self, inputs: Any) -> Array:
        if self.cut and not isinstance(inputs, dict) and self.config.torso in TORSOS:
            return apply_torso(self.config, self.images, inputs, self.config.hidden_sizes[:-1])
        return apply_torso(self.config, self.images, inputs)


def make_q_network(config: NetworkConfig, spec: EnvSpec, options: QOptions) -> QNetwork:
    """Returns a network for this environment: torso, core if recurrent, and the streams of `QHead`.

    The last of `hidden_sizes` is the size of each stream's hidden layer. For a feed-forward network over one array, that layer
    replaces the torso's last. So (512,) over images is the network of Mnih et al. 2015, and with dueling that of Wang et al. 2016.
    Otherwise it follows the whole torso and the core. The action mask and `critic_only` leaves are no inputs.

    Raises:
        UserError: If the action is not one Discrete leaf, or torso or mask do not fit the environment.
    """
    num_actions = validate_discrete(spec)
    validate_read(config, "a Q-network")
    inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    validate_torso(spec, inputs)
    head = QHead(
        num_actions,
        options.num_outputs,
        config.hidden_sizes[-1],
        config.layers,
        options.dueling,
        options.noisy_sigma,
    )
    core = None if config.core == "none" else make_core(config)
    torso = _Features(config, inputs.images, cut=core is None)
    legal = make_legal(spec)
    bound = _bound(inputs, torso, core, head)
    return bound._replace(legal=lambda params, observation: legal(observation), num_actions=num_actions)


def validate_discrete(spec: EnvSpec) -> int:
    """Returns the number of actions.

    Raises:
        UserError: If the action is not one Discrete leaf.
    """
    leaf = spec.action
    if not isinstance(leaf, DiscreteSpec):
        listed = ", ".join(f"{shown_path('action', path)} {leaf}" for path, leaf in items(spec.action))
        raise UserError(
            f"{spec.env_id}: a Q-network has one value for each action: expected one Discrete action, got {listed}; enumerate the "
            f"combinations as one Discrete action in a wrapper, or use an agent with a policy (PPO, SAC)"
        )
    return leaf.num_values


def _bound(inputs: ObservationInputs, torso: nn.Module, core: Core | None, head: QHead) -> QNetwork:
    def init(key: Array) -> Params:
        torso_key, core_key, head_key = jax.random.split(key, 3)
        params = torso.init(torso_key, inputs.zeros())
        size: int = jax.eval_shape(torso.apply, params, inputs.zeros()).shape[-1]  # pyright: ignore
        trees = {"torso": params}
        if core is not None:
            trees["core"], size = core.init(core_key, size), core.num_outputs
        return trees | {"head": head.init(head_key, jnp.zeros((1, size)), None)}

    def features(params: Params, observation: Observation) -> Array:
        return inputs.restore(observation, torso.apply(params["torso"], inputs.encode(observation)))

    def outputs(params: Params, observation: Observation, noise: Array | None) -> Array:
        if core is not None:
            raise TypeError("a recurrent network has no outputs for an observation alone: use `step` or `unroll`")
        return head.apply(params["head"], features(params, observation), noise)  # pyright: ignore[reportReturnType]

    def unroll(
        params: Params, observation: Observation, state: AgentState, is_first: Array, noise: Array | None
    ) -> tuple[Array, AgentState]:
        if core is None:
            return outputs(params, observation, noise), state
        hidden, state = core.apply(params["core"], features(params, observation), state, is_first)
        return head.apply(params["head"], hidden, noise), state  # pyright: ignore[reportReturnType]

    initial_state = (lambda num_rows: ()) if core is None else core.initial_state
    return QNetwork(init, outputs, unroll, initial_state, lambda params, observation: None, 0, core is not None)
