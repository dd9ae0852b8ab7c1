"""Benchmark of tree search: rows x simulations, against mctx called directly with one key for all rows."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.gumbel import GumbelConfig, gumbel_search
from agents.search.model import Latent, ModelStep, Root
from jaxsrl.bench.turns import calls_per_second, median_ratio, take_turns

_ACTIONS = 6
_MCTX: Any = mctx  # fields of its dataclasses are hidden from type checkers


def bench_search(
    rows: tuple[int, ...] = (16, 64, 256),
    simulations: tuple[int, ...] = (16, 32),
    latent_size: int = 64,
    rounds: int = 10,
    seconds: float = 0.5,
) -> dict[str, Any]:
    """Measures searches per second of Gumbel MuZero, of a learned model with two dense layers and 6 actions.

    Contenders take alternating turns: our search, which has a key for each row; mctx's with one key for all rows, as its
    documentation calls it; and the model's calls alone, without any tree.

    Args:
        rows: Rows of a call, each a search.
        simulations: Simulations of a search.
        latent_size: numbers in the model's state.
        rounds: turns of each contender.
        seconds: Seconds of a turn, at least one call.

    Returns:
        A row of `searches` for each number of rows and simulations: searches per second, the ratio to mctx's, and the ratio of the
        time of a search to that of the model's calls alone.
    """
    params = _init_params(latent_size)
    table = [
        _measure(params, latent_size, num_rows, number, rounds, seconds) for num_rows in rows for number in simulations
    ]
    return {
        "searches": table,
        "latent_size": latent_size,
        "rounds": rounds,
        "platform": jax.default_backend(),
    }


def _measure(
    params: Params, latent_size: int, rows: int, simulations: int, rounds: int, seconds: float
) -> dict[str, Any]:
    latent = jax.random.normal(jax.random.key(1), (rows, latent_size))
    keys = jax.random.split(jax.random.key(2), rows)
    config = GumbelConfig(simulations)

    def ours(latent: Array) -> Array:
        return gumbel_search(_step, params, _root(params, latent), keys, config).action

    def mctx_step(params: Params, key: Array, action: Array, latent: Array) -> tuple[Any, Array]:
        after = _step(params, latent, action, key)
        return _MCTX.RecurrentFnOutput(
            reward=after.reward, discount=after.discount, prior_logits=after.logits, value=after.value
        ), after.latent

    def mctx_alone(latent: Array) -> Any:
        ours = _root(params, latent)
        root = _MCTX.RootFnOutput(prior_logits=ours.logits, value=ours.value, embedding=ours.latent)
        transform = partial(
            mctx.qtransform_completed_by_mix_value,
            value_scale=config.value_scale,
            maxvisit_init=config.visit_offset,
        )
        return _MCTX.gumbel_muzero_policy(params, keys[0], root, mctx_step, simulations, qtransform=transform).action

    def model_alone(latent: Array) -> Array:
        def one(_: Array, latent: Array) -> Array:
            return _step(params, latent, jnp.zeros(rows, jnp.int32), keys[0]).latent

        return jax.lax.fori_loop(0, simulations, one, latent)

    contenders = {"ours": ours, "mctx": mctx_alone, "model": model_alone}
    turns = {name: partial(calls_per_second, _compile(call, latent), seconds) for name, call in contenders.items()}
    speeds = take_turns(turns, rounds)
    return {
        "rows": rows,
        "simulations": simulations,
        "searches_per_second": rows * statistics.median(speeds["ours"]),
        "ratio_to_mctx": median_ratio(speeds["ours"], speeds["mctx"]),
        "time_to_model_alone": median_ratio(speeds["model"], speeds["ours"]),
    }


def _compile(call: Callable[[Array], Any], latent: Array) -> Callable[[], Any]:
    """Returns a compiled call that waits for its result."""
    compiled = jax.jit(call)
    jax.block_until_ready(compiled(latent))
    return lambda: jax.block_until_ready(compiled(latent))


def _init_params(latent_size: int) -> Params:
    keys = jax.random.split(jax.random.key(0), 3)
    scale = latent_size**-0.5
    return {
        "state": scale * jax.random.normal(keys[0], (latent_size + _ACTIONS, latent_size)),
        "hidden": scale * jax.random.normal(keys[1], (latent_size, latent_size)),
        "heads": scale * jax.random.normal(keys[2], (latent_size, _ACTIONS + 2)),
    }


def _root(params: Params, latent: Array) -> Root:
    heads = latent @ params["heads"]
    return Root(heads[:, :_ACTIONS], heads[:, _ACTIONS], latent)


def _step(params: Params, latent: Latent, action: Array, _: Array) -> ModelStep:
    inputs = jnp.concatenate([latent, jax.nn.one_hot(action, _ACTIONS)], axis=-1)
    latent = jnp.tanh(jax.nn.relu(inputs @ params["state"]) @ params["hidden"])
    heads = latent @ params["heads"]
    discount = jnp.full(len(action), 0.99)
    return ModelStep(heads[:, _ACTIONS + 1], discount, heads[:, :_ACTIONS], heads[:, _ACTIONS], latent)
