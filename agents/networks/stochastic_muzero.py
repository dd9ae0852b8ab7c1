"""Stochastic MuZero's networks: MuZero's, of which an outcome of chance takes the action's place, and those of afterstates.

Source: Antonoglou et al. 2022, "Planning in stochastic environments with a learned model" (ICLR), section 4 and appendix.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from agents.api import Array, Observation, Params
from agents.networks.branch import HeadSize, make_branch
from agents.networks.config import NetworkConfig
from agents.networks.muzero import Prediction, latent_of, make_muzero_network, scale_latent, small_head
from agents.networks.observation_inputs import make_inputs
from agents.networks.torsos.mlp import MLP
from envpool_bridge.spec.specs import EnvSpec


class AfterstatePrediction(NamedTuple):
    """State between an action and chance, and its predictions.

    Attributes:
        latent: [..., D] float32 in [0, 1].
        value: [..., K] float32, logits of the value's atoms.
        outcome: [..., C] float32, logits of the outcomes of chance.
    """

    latent: Array
    value: Array
    outcome: Array


class StochasticMuZeroNetwork(NamedTuple):
    """Bound to an environment's spec. D is the size of the latent state, F that of an action's features, C the outcomes.

    Attributes:
        init: Returns parameters; the key is consumed.
        represent: Maps (params, observation [..., *leaf]) to latent states [..., D] in [0, 1].
        decide: Maps (params, latent, action features [..., F]) to the afterstate and its predictions.
        advance: Maps (params, latent of an afterstate, outcome [..., C] one-hot) to the next latent and logits [..., K] of the
            reward.
        predict: Maps (params, latent) to policy and value.
        encode: Maps (params, observation, next observation) to scores [..., C] of the outcomes between them.
    """

    init: Callable[[Array], Params]
    represent: Callable[[Params, Observation], Array]
    decide: Callable[[Params, Array, Array], AfterstatePrediction]
    advance: Callable[[Params, Array, Array], tuple[Array, Array]]
    predict: Callable[[Params, Array], Prediction]
    encode: Callable[[Params, Observation, Observation], Array]


class _Afterstate(nn.Module):
    config: NetworkConfig
    latent_size: int
    num_atoms: int
    num_outcomes: int

    @nn.compact
    def __call__(self, latent: Array, action: Array) -> AfterstatePrediction:
        hidden = MLP(self.config.hidden_sizes, self.config.layers)(jnp.concatenate([latent, action], axis=-1))
        change = nn.Dense(self.latent_size, kernel_init=nn.initializers.orthogonal(1.0), name="latent")(hidden)
        after = scale_latent(latent + change)
        hidden = MLP(self.config.hidden_sizes, self.config.layers)(after)
        return AfterstatePrediction(
            after, small_head(self.num_atoms, "value")(hidden), small_head(self.num_outcomes, "outcome")(hidden)
        )


class _Outcome(nn.Module):
    config: NetworkConfig
    num_outcomes: int

    @nn.compact
    def __call__(self, before: Array, after: Array) -> Array:
        hidden = MLP(self.config.hidden_sizes, self.config.layers)(jnp.concatenate([before, after], axis=-1))
        return nn.Dense(self.num_outcomes, kernel_init=nn.initializers.orthogonal(1.0), name="scores")(hidden)


def make_stochastic_muzero_network(
    config: NetworkConfig, spec: EnvSpec, *, latent_size: int, num_actions: int, num_outcomes: int, num_atoms: int
) -> StochasticMuZeroNetwork:
    """Returns the networks. Torso and dense layers are those of `config`, of each network its own.

    Args:
        config: Configuration of all networks.
        spec: Spec of the environment.
        latent_size: D.
        num_actions: A; an action's features are one-hot.
        num_outcomes: C, of chance.
        num_atoms: K, of values and rewards.

    Raises:
        UserError: If the network is recurrent, has sizes of a critic, or does not fit the observations.
    """
    muzero = make_muzero_network(
        config,
        spec,
        latent_size=latent_size,
        num_parameters=num_actions,
        num_features=num_outcomes,
        num_atoms=num_atoms,
    )
    afterstate = _Afterstate(config, latent_size, num_atoms, num_outcomes)
    inputs = make_inputs(spec, config.torso, without=spec.critic_only)
    seen, outcome = (
        make_branch(config, inputs, {"features": HeadSize(latent_size, 1.0)}),
        _Outcome(config, num_outcomes),
    )

    def init(key: Array) -> Params:
        keys, latent = jax.random.split(key, 4), jnp.zeros((1, latent_size))
        return {
            **muzero.init(keys[0]),
            "afterstate": afterstate.init(keys[1], latent, jnp.zeros((1, num_actions))),
            "encoder": {"observation": seen.init(keys[2]), "outcome": outcome.init(keys[3], latent, latent)},
        }

    def represent(params: Params, observation: Observation) -> Array:
        return latent_of(muzero.represent(params, observation))

    def decide(params: Params, latent: Array, action: Array) -> AfterstatePrediction:
        return afterstate.apply(params["afterstate"], latent, action)  # pyright: ignore[reportReturnType]

    def advance(params: Params, latent: Array, taken: Array) -> tuple[Array, Array]:
        state, reward = muzero.advance(params, latent, taken)
        return latent_of(state), reward

    def encode(params: Params, observation: Observation, next_observation: Observation) -> Array:
        encoder = params["encoder"]
        before, after = (
            seen.outputs(encoder["observation"], leaf)["features"] for leaf in (observation, next_observation)
        )
        return outcome.apply(encoder["outcome"], before, after)  # pyright: ignore[reportReturnType]

    return StochasticMuZeroNetwork(init, represent, decide, advance, muzero.predict, encode)
