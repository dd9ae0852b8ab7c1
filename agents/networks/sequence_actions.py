"""Actions as inputs and outputs of a sequence network: continuous ones, or one discrete."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Action, Array, Mode, Observation
from agents.networks.distributions.masking import make_legal, mask_logits
from agents.ops.action_scaling import continuous_actions
from agents.ops.epsilon_greedy import select_action
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec


class SequenceActions(NamedTuple):
    """Bound to an environment's spec.

    Attributes:
        size: A, number of elements of an encoded action and of outputs.
        encode: Maps actions [...] to [..., A] float32: in [-1, 1], or one-hot.
        error: Maps (outputs [..., A], actions [...], observations [...]) to [...] float32: the mean squared difference of the
            elements, or the negative log-probability, nats.
        choose: Maps (outputs [B, A], observations [B, ...], keys [B], mode) to actions [B, ...]; keys are consumed.
    """

    size: int
    encode: Callable[[Action], Array]
    error: Callable[[Array, Action, Observation], Array]
    choose: Callable[[Array, Observation, Array, Mode], Action]


def sequence_actions(spec: EnvSpec) -> SequenceActions:
    """Returns the functions of this environment's actions.

    Raises:
        UserError: If they are neither one Discrete leaf nor continuous with finite bounds, or the action mask does not fit.
    """
    return _discrete(spec, spec.action.num_values) if isinstance(spec.action, DiscreteSpec) else _continuous(spec)


def _continuous(spec: EnvSpec) -> SequenceActions:
    actions = continuous_actions(spec)

    def error(outputs: Array, action: Action, observation: Observation) -> Array:
        del observation
        return jnp.mean(jnp.square(jnp.tanh(outputs) - actions.to_unit(action)), axis=-1)

    def choose(outputs: Array, observation: Observation, keys: Array, mode: Mode) -> Action:
        del observation, keys, mode
        return actions.from_unit(jnp.tanh(outputs))

    return SequenceActions(actions.size, actions.to_unit, error, choose)


def _discrete(spec: EnvSpec, num_actions: int) -> SequenceActions:
    legal = make_legal(spec)

    def encode(action: Action) -> Array:
        return jax.nn.one_hot(action, num_actions)

    def error(outputs: Array, action: Action, observation: Observation) -> Array:
        return -select_action(jax.nn.log_softmax(mask_logits(outputs, legal(observation))), action)

    def choose(outputs: Array, observation: Observation, keys: Array, mode: Mode) -> Action:
        logits = mask_logits(outputs, legal(observation))
        if mode is Mode.GREEDY:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)

    return SequenceActions(num_actions, encode, error, choose)
