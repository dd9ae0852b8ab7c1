"""Legal actions from infos, from the environment to the policy: what is illegal is never taken."""

import gymnasium
import jax
import numpy as np

from agents.api import Mode
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.envs.protocol import EpisodeReset, first_rows, step_rows
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import allocate_slots

ROWS, STEPS = 4, 500


def sampled_actions(config):
    """Actions [STEPS, ROWS] of an untrained policy, the legal ones [STEPS, ROWS, A] as Taxi itself tells, and valid."""
    source = config.source()
    spec = source.spec()
    agent = make_ppo(PPOConfig(), spec, NetworkConfig(hidden_sizes=(8,)))
    params = agent.init(jax.random.key(1)).params
    act = jax.jit(
        lambda observation, is_first, keys: agent.act(params, observation, (), is_first, keys, Mode.SAMPLE)[0]
    )
    (slot,) = allocate_slots(make_layout(spec, PoolShape(1, 1, 1, ROWS, STEPS, 1), agent.extras))
    rows = source.make_rows(range(ROWS), 0, False)
    rows.reset(EpisodeReset((0,) * ROWS, (None,) * ROWS), first_rows(slot))
    actions = np.zeros((STEPS, ROWS), np.int32)
    for t in range(STEPS):
        seen = jax.tree.map(lambda leaf, t=t: leaf[t], slot.observation)
        actions[t] = act(seen, slot.is_first[t], jax.random.split(jax.random.key(t), ROWS))
        out = step_rows(slot, t)
        out.prepare()
        rows.step(actions[t], out)
    rows.close()
    states = slot.observation["observation"] if config.mask_from_info else slot.observation
    taxi = gymnasium.make("Taxi-v4").unwrapped
    legal = np.array([[taxi.action_mask(int(state)) for state in row] for row in states[:STEPS]])
    return actions, legal, slot.valid[:STEPS]


def test_ppo_takes_no_illegal_action_in_taxi():
    actions, legal, valid = sampled_actions(EnvConfig("Taxi-v4", mask_from_info=True))
    taken = np.take_along_axis(legal, actions[..., None], -1)[..., 0]
    assert valid.sum() > 0.99 * ROWS * STEPS
    assert (taken[valid] == 1).all()
    assert 0 < (legal == 0).mean() < 1  # there were illegal ones to take
    assert len(np.unique(actions)) >= 5


def test_without_the_mask_it_takes_many():
    actions, legal, valid = sampled_actions(EnvConfig("Taxi-v4"))
    taken = np.take_along_axis(legal, actions[..., None], -1)[..., 0]
    assert (taken[valid] == 0).mean() > 0.2
