"""A world model bound to an environment's spec: observing sequences, predicting rewards and ends, and its losses.

Source: Hafner et al. 2025 (DreamerV3, arXiv:2301.04104), "World model learning".
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from agents.api import Array, Observation, Params, Trajectory
from agents.networks.config import DTypeName
from agents.ops.symlog import symexp_mean, symexp_two_hot
from agents.ops.two_hot import cross_entropy
from agents.world_models.actions import ActionVectors, make_action_vectors
from agents.world_models.autoencoder import Decoder, Encoder
from agents.world_models.layers import Head
from agents.world_models.observations import Decoded, ModelObservations, make_observations
from agents.world_models.rssm import RSSM, Latent, initial_latent, sample_stoch
from agents.world_models.sizes import Sizes
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import map_leaves

NUM_ATOMS = 255
"""Categories of rewards and values (`agents.ops.symlog`)."""

_ACTING = ("encoder", "rssm", "policy")


class WorldModel(NamedTuple):
    """Functions of parameters {"encoder", "rssm", "decoder", "reward", "continue"}.

    Attributes:
        sizes: Sizes of all layers.
        actions: Actions as vectors [..., F].
        observations: Leaves of the observation.
        unroll: Steps in each iteration of a loop over time.
        init: Returns parameters; the key is consumed.
        encode: Maps (params, observations [..., *leaf]) to tokens [..., E].
        advance: Maps (params, latent, actions [..., F]) to recurrent states [..., D].
        prior: Maps (params, recurrent states [..., D]) to log-probabilities [..., S, C].
        posterior: Maps (params, recurrent states [..., D], tokens [..., E]) to log-probabilities [..., S, C].
        decode: Maps (params, latent) to reconstructions.
        reward: Maps (params, features [..., D + S C]) to logits [..., K] of the reward that came with the state.
        continues: Maps (params, features [..., D + S C]) to logits [...] of the discount, 0 after a terminal state.
    """

    sizes: Sizes
    actions: ActionVectors
    observations: ModelObservations
    unroll: int
    init: Callable[[Array], Params]
    encode: Callable[[Params, Observation], Array]
    advance: Callable[[Params, Latent, Array], Array]
    prior: Callable[[Params, Array], Array]
    posterior: Callable[[Params, Array, Array], Array]
    decode: Callable[[Params, Latent], Decoded]
    reward: Callable[[Params, Array], Array]
    continues: Callable[[Params, Array], Array]


class Observed(NamedTuple):
    """States of a sequence, whose first axes are [T, B].

    Attributes:
        latent: States, sampled with the observations.
        posterior: [T, B, S, C] float32 log-probabilities of the samples.
        prior: [T, B, S, C] float32, likewise without the newest observation.
    """

    latent: Latent
    posterior: Array
    prior: Array


class Arrivals(NamedTuple):
    """Values that came with the observations 1 to L of a window of L steps: [L, B] each.

    Attributes:
        observation: The observations, [L, B, ...] each leaf.
        reward: float32, of the step before; 0 at the first observation of an episode.
        terminal: bool, the episode ended here by the task's own rules.
        last: bool, the episode ended here or was cut: the next step only resets.
        known: float32, 0 where the row's agent is absent.
    """

    observation: Observation
    reward: Array
    terminal: Array
    last: Array
    known: Array


def make_world_model(sizes: Sizes, spec: EnvSpec, dtype: DTypeName, unroll: int = 1) -> WorldModel:
    """Returns the model; raises UserError where actions or observations do not fit."""
    actions, observations = make_action_vectors(spec), make_observations(spec)
    encoder, decoder = Encoder(observations, sizes, dtype), Decoder(observations, sizes, dtype)
    rssm = RSSM(sizes, dtype)
    reward = Head(1, sizes.units, NUM_ATOMS, 0.0, dtype)
    continues = Head(1, sizes.units, 1, 1.0, dtype)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 5)
        # As agents see it: with all frames.
        observation = map_leaves(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), spec.observation)
        latent, action = initial_latent(sizes, 1), jnp.zeros((1, actions.size))
        encoded = encoder.init(keys[0], observation)
        tokens = encoder.apply(encoded, observation)
        return {
            "encoder": encoded,
            "rssm": rssm.init(keys[1], latent, action, tokens),
            "decoder": decoder.init(keys[2], latent),
            "reward": reward.init(keys[3], latent.features),
            "continue": continues.init(keys[4], latent.features),
        }

    def apply_rssm(method: Callable[..., Array]) -> Callable[..., Array]:
        return lambda params, *inputs: rssm.apply(params["rssm"], *inputs, method=method)  # pyright: ignore[reportReturnType]

    return WorldModel(
        sizes,
        actions,
        observations,
        unroll,
        init,
        encode=lambda params, observation: encoder.apply(params["encoder"], observation),  # pyright: ignore[reportArgumentType]
        advance=apply_rssm(RSSM.advance),
        prior=apply_rssm(RSSM.prior),
        posterior=apply_rssm(RSSM.posterior),
        decode=lambda params, latent: decoder.apply(params["decoder"], latent),  # pyright: ignore[reportArgumentType]
        reward=lambda params, features: reward.apply(params["reward"], features),  # pyright: ignore[reportArgumentType]
        continues=lambda params, features: continues.apply(params["continue"], features)[..., 0],  # pyright: ignore
    )


def observe_step(
    model: WorldModel, params: Params, latent: Latent, action: Array, is_first: Array, tokens: Array, noise: Array
) -> tuple[Latent, Array]:
    """Returns the next state and the log-probabilities [B, S, C] of its sample.

    Args:
        model: The bound model.
        params: Parameters of the model.
        latent: State of the step before.
        action: [B, F] action of the step before.
        is_first: [B] bool, an episode begins: state and action before it are replaced by zeros.
        tokens: [B, E] encoded observation.
        noise: [B, S, C] Gumbel noise of the sample.
    """
    kept = 1.0 - is_first.astype(jnp.float32)
    latent = Latent(latent.deter * kept[:, None], latent.stoch * kept[:, None, None])
    deter = model.advance(params, latent, action * kept[:, None])
    posterior = model.posterior(params, deter, tokens)
    return Latent(deter, sample_stoch(posterior, noise)), posterior


def observe(
    model: WorldModel,
    params: Params,
    latent: Latent,
    action: Array,
    is_first: Array,
    observation: Observation,
    noise: Array,
) -> Observed:
    """Returns the states of T observations [T, B, *leaf]; the arguments are those of `observe_step`, [T, B, ...] each."""
    tokens = model.encode(params, observation)

    def step(before: Latent, inputs: tuple[Array, ...]) -> tuple[Latent, tuple[Latent, Array]]:
        after, posterior = observe_step(model, params, before, *inputs)
        return after, (after, posterior)

    _, (latents, posterior) = jax.lax.scan(step, latent, (action, is_first, tokens, noise), unroll=model.unroll)
    return Observed(latents, posterior, model.prior(params, latents.deter))


def arrivals(window: Trajectory) -> Arrivals:
    """Returns what came with the observations after each step: the reward of step t belongs to observation t + 1.

    An episode that a failure cut has no flag; the step after it does not count.
    """
    known = window.valid | window.is_first[1:]
    cut = jnp.zeros_like(window.valid).at[:-1].set(~window.valid[1:])
    return Arrivals(
        observation=jax.tree.map(lambda leaf: leaf[1:], window.observation),
        reward=jnp.where(window.valid, window.reward, 0.0),
        terminal=window.valid & window.terminated,
        last=window.valid & (window.terminated | window.truncated | cut),
        known=known.astype(jnp.float32),
    )


def model_losses(
    model: WorldModel, params: Params, observed: Observed, arrived: Arrivals, *, discount: float, free_nats: float
) -> dict[str, Array]:
    """Returns the losses [T, B] of the world model by name, without weights.

    Args:
        model: The bound model.
        params: Parameters of the model.
        observed: [T, B, ...] states.
        arrived: [T, B, ...] what came with their observations.
        discount: g, per env step: what `continues` predicts unless the state is terminal.
        free_nats: KL divergence below which there is no gradient, nats.
    """
    features = observed.latent.features
    reward = cross_entropy(model.reward(params, features), symexp_two_hot(arrived.reward, NUM_ATOMS))
    expected = discount * (1.0 - arrived.terminal.astype(jnp.float32))
    dynamics, representation = balanced_kl(observed.posterior, observed.prior, free_nats)
    return {
        "reconstruction": model.observations.reconstruction_loss(
            model.decode(params, observed.latent), arrived.observation
        ),
        "reward": reward,
        "continue": optax.sigmoid_binary_cross_entropy(model.continues(params, features), expected),
        "dynamics": dynamics,
        "representation": representation,
    }


def balanced_kl(posterior: Array, prior: Array, free_nats: float) -> tuple[Array, Array]:
    """Returns [...]: KL(posterior || prior) in nats twice, whose gradients reach only the prior and only the posterior.

    Args:
        posterior: [..., S, C] log-probabilities.
        prior: [..., S, C] log-probabilities.
        free_nats: Smallest value of both, of the sum over S.
    """
    fixed = jax.lax.stop_gradient
    dynamics, representation = kl(fixed(posterior), prior), kl(posterior, fixed(prior))
    return jnp.maximum(dynamics, free_nats), jnp.maximum(representation, free_nats)


def kl(p: Array, q: Array) -> Array:
    """Returns KL(p || q) [...] in nats of log-probabilities [..., S, C] of S independent variables."""
    return jnp.sum(jnp.exp(p) * (p - q), axis=(-2, -1))


def predicted_reward(model: WorldModel, params: Params, features: Array) -> Array:
    """Returns [...] expected rewards, environment reward units."""
    return symexp_mean(model.reward(params, features))


def predicted_discount(model: WorldModel, params: Params, features: Array) -> Array:
    """Returns [...] in [0, 1]: about g, or 0 at terminal states."""
    return jax.nn.sigmoid(model.continues(params, features))


def split_params(params: Params) -> tuple[Params, Params]:
    """Returns the parameters that an agent with a world model acts with, and the others, by name of the network."""
    return {name: params[name] for name in _ACTING}, {name: params[name] for name in params if name not in _ACTING}
