"""Baseline of `bench_on_device`: PPO as PureJaxRL published it, reimplemented from that description.

It is one jitted program, without reset-only rows, options or placement. Environments under vmap start a new episode within the
step that ends one. One key is split at each step for all rows. A scan of T steps stores log-probabilities and values, and a
reverse scan computes GAE. Epochs permute the flattened T * B steps before they are divided into minibatches.

Source: Lu et al. 2022, "Discovered Policy Optimisation" (arXiv:2210.05639), appendix; github.com/luchris429/purejaxrl.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxsrl.envs.protocol import Array, JaxEnv

_DISCOUNT, _LAMBDA, _CLIP, _VALUE_COEF, _ENTROPY_COEF = 0.99, 0.95, 0.2, 0.5, 0.01


class Sizes(NamedTuple):
    """Attributes: num_envs (B), rollout_length (T), num_epochs, num_minibatches (divides T * B)."""

    num_envs: int
    rollout_length: int
    num_epochs: int
    num_minibatches: int


class FlatState(NamedTuple):
    """Attributes: params, opt_state, env_state and observation [B, ...] each, key."""

    params: Any
    opt_state: Any
    env_state: Any
    observation: Array
    key: Array


class _Step(NamedTuple):
    """One step of all rows; [B, ...] each."""

    observation: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    done: Array


class _Net(nn.Module):
    """Network with separate towers for logits and value."""

    num_actions: int
    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, observation: Array) -> tuple[Array, Array]:
        orthogonal = nn.initializers.orthogonal

        def tower(outputs: int, gain: float) -> Array:
            x = observation
            for size in self.hidden_sizes:
                x = jnp.tanh(nn.Dense(size, kernel_init=orthogonal(2**0.5))(x))
            return nn.Dense(outputs, kernel_init=orthogonal(gain))(x)

        return tower(self.num_actions, 0.01), tower(1, 1.0)[..., 0]


def _apply(net: _Net, params: Any, observation: Array) -> tuple[Array, Array]:
    return net.apply(params, observation)  # pyright: ignore[reportReturnType]


def make_flat_ppo(
    env: JaxEnv, sizes: Sizes, hidden_sizes: tuple[int, ...], learning_rate: float
) -> tuple[Callable[[Array], FlatState], Callable[[Array, FlatState], FlatState]]:
    """Returns (init(key), advance(num_updates, state)). `advance` is jitted and donates the state."""
    net = _Net(env.spec().action.num_values, hidden_sizes)  # pyright: ignore[reportAttributeAccessIssue]
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(learning_rate, eps=1e-5))

    def init(key: Array) -> FlatState:
        net_key, env_key, key = jax.random.split(key, 3)
        env_state, observation = jax.vmap(env.reset)(jax.random.split(env_key, sizes.num_envs))
        params = net.init(net_key, observation)
        return FlatState(params, optimizer.init(params), env_state, observation, key)

    def update(_: Array, state: FlatState) -> FlatState:
        state, steps = jax.lax.scan(partial(_env_step, env, net, sizes), state, None, sizes.rollout_length)
        advantage = _gae(steps, _apply(net, state.params, state.observation)[1])
        batch = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), (steps, advantage))
        epoch = partial(_epoch, net, optimizer, sizes, batch)
        key, *keys = jax.random.split(state.key, 1 + sizes.num_epochs)
        (params, opt_state), _ = jax.lax.scan(epoch, (state.params, state.opt_state), jnp.stack(keys))
        return FlatState(params, opt_state, state.env_state, state.observation, key)

    @partial(jax.jit, donate_argnums=1)
    def advance(num_updates: Array, state: FlatState) -> FlatState:
        return jax.lax.fori_loop(0, num_updates, update, state)

    return jax.jit(init), advance


def _env_step(env: JaxEnv, net: _Net, sizes: Sizes, state: FlatState, _: None) -> tuple[FlatState, _Step]:
    key, action_key, env_key = jax.random.split(state.key, 3)
    logits, value = _apply(net, state.params, state.observation)
    action = jax.random.categorical(action_key, logits)
    step = partial(step_or_begin, env)
    env_keys = jax.random.split(env_key, sizes.num_envs)
    env_state, observation, reward, done = jax.vmap(step)(env_keys, state.env_state, action)
    recorded = _Step(state.observation, action, _log_prob(logits, action), value, reward, done)
    return FlatState(state.params, state.opt_state, env_state, observation, key), recorded


def step_or_begin(env: JaxEnv, key: Array, env_state: Any, action: Array) -> tuple[Any, Array, Array, Array]:
    """Returns one step with SAME_STEP autoreset: the observation after an end is the next episode's first."""
    step_key, reset_key = jax.random.split(key)
    stepped = env.step(env_state, action, step_key)
    first_state, first_observation = env.reset(reset_key)
    done = stepped.terminated | stepped.truncated
    env_state = jax.tree.map(lambda first, new: jnp.where(done, first, new), first_state, stepped.state)
    return env_state, jnp.where(done, first_observation, stepped.observation), stepped.reward, done


def _gae(steps: _Step, last_value: Array) -> Array:
    def back(carry: tuple[Array, Array], step: _Step) -> tuple[tuple[Array, Array], Array]:
        advantage, next_value = carry
        delta = step.reward + _DISCOUNT * next_value * (1 - step.done) - step.value
        advantage = delta + _DISCOUNT * _LAMBDA * (1 - step.done) * advantage
        return (advantage, step.value), advantage

    carry = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(back, carry, steps, reverse=True, unroll=16)[1]


def _epoch(
    net: _Net,
    optimizer: optax.GradientTransformation,
    sizes: Sizes,
    batch: tuple[_Step, Array],
    carry: tuple[Any, Any],
    key: Array,
) -> tuple[tuple[Any, Any], Array]:
    order = jax.random.permutation(key, sizes.num_envs * sizes.rollout_length)
    shuffled = jax.tree.map(lambda x: x[order].reshape((sizes.num_minibatches, -1, *x.shape[1:])), batch)

    def gradient_step(carry: tuple[Any, Any], minibatch: tuple[_Step, Array]) -> tuple[tuple[Any, Any], Array]:
        params, opt_state = carry
        total, grads = jax.value_and_grad(partial(_loss, net))(params, *minibatch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), total

    return jax.lax.scan(gradient_step, carry, shuffled)


def _loss(net: _Net, params: Any, steps: _Step, advantage: Array) -> Array:
    logits, value = _apply(net, params, steps.observation)
    target = advantage + steps.value
    value_clipped = steps.value + jnp.clip(value - steps.value, -_CLIP, _CLIP)
    value_error = 0.5 * jnp.maximum(jnp.square(value - target), jnp.square(value_clipped - target)).mean()
    ratio = jnp.exp(_log_prob(logits, steps.action) - steps.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - _CLIP, 1 + _CLIP) * advantage).mean()
    log_probs = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
    return -surrogate + _VALUE_COEF * value_error - _ENTROPY_COEF * entropy


def _log_prob(logits: Array, action: Array) -> Array:
    # A one-hot product, as distrax (which PureJaxRL uses) has it; on CPU it is faster than a gather and its scatter.
    return jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(action, logits.shape[-1]), axis=-1)
