"""Agents, slots full of random steps, and how long something takes: what items of `make gpu` share."""

import time

import jax
import numpy as np

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec

VECTOR = EnvSpec("vector", ArraySpec((8,), "float32"), DiscreteSpec(4))
IMAGE = EnvSpec("image", ArraySpec((84, 84, 4), "uint8"), DiscreteSpec(6))
FRAMES = EnvSpec("frames", ArraySpec((4, 84, 84), "uint8", frames=4), DiscreteSpec(6))  # as Atari's


def ppo(spec=VECTOR, network=None, **options):
    return make_ppo(PPOConfig(**options), spec, network or NetworkConfig())


def random_slots(agent, spec=VECTOR, rows=64, steps=32, count=1, seed=0):
    slots, random = allocate_slots(layout_of(agent, spec, rows, steps, count)), np.random.default_rng(seed)
    for slot in slots:
        fill(slot, random)
    return slots


def layout_of(agent, spec=VECTOR, rows=64, steps=32, count=1):
    return make_layout(spec, PoolShape(1, 1, 1, rows, steps, count), agent.extras)


def fill(slot, random):
    """Writes random steps into a slot."""
    if slot.frames.dtype == np.uint8:
        slot.frames[...] = random.integers(0, 255, slot.frames.shape, np.uint8)
    else:
        slot.frames[...] = random.normal(size=slot.frames.shape)
    slot.action[...] = random.integers(0, 4, slot.action.shape)
    slot.reward[...], slot.valid[...] = random.normal(size=slot.reward.shape), True
    slot.extras["behavior_log_prob"][...] = np.log(0.25)


def median_ms(call, times):
    """Milliseconds of a call whose results are waited for, the median after two that are not counted."""
    seconds = []
    for _ in range(times + 2):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(seconds[2:]))


def same(one, other):
    """Whether two pytrees have the same bits."""
    pairs = zip(jax.tree.leaves(jax.device_get(one)), jax.tree.leaves(jax.device_get(other)), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
