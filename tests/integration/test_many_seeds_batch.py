"""Members of an accelerator are one batch, here of the CPU: one number of updates copies no state, different ones may."""

import jax
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from jaxsrl.device_loop.program import make_run_keys
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.learner.learning_agent import learning_agent
from jaxsrl.many_seeds import program
from jaxsrl.many_seeds.program import MembersProgram, MemberStart

ROWS, STEPS, MEMBERS, CAPACITY = 4, 8, 3, 200_000


def make_program(devices=1):
    env = CartPole()
    replay = ReplayConfig(capacity=CAPACITY, batch_size=8, min_size=64, gradient_steps_per_env_step=0.125)
    config = DQNConfig(replay=replay, total_updates=100)
    agent = learning_agent(make_dqn(config, env.spec(), NetworkConfig(hidden_sizes=(8,))), env.spec(), ROWS, STEPS)
    starts = []
    for seed in range(MEMBERS):
        init, act, update = jax.random.split(jax.random.key(seed), 3)
        starts.append(MemberStart(jax.jit(agent.init)(init), make_run_keys(seed, act, update, ROWS), None, {}))
    return MembersProgram(lambda values: agent, env, STEPS, starts, jax.local_devices()[:devices])


def params(members, member):
    return jax.device_get(members.state(member).params)


@pytest.fixture(scope="module")
def one_by_one():
    """Parameters of each member after 20 updates, computed one after another."""
    members = make_program()
    members.advance(dict.fromkeys(range(MEMBERS), 20))
    return [params(members, member) for member in range(MEMBERS)]


def assert_close(found, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2], ids=["one device", "two devices, a copy on the second"])
def test_a_batch_advances_all_members_by_one_number(devices, one_by_one, monkeypatch):
    monkeypatch.setattr(program, "_runs_as_batch", lambda device: True)
    members = make_program(devices)
    for _ in range(2):
        members.advance(dict.fromkeys(range(MEMBERS), 10))
    for member in range(MEMBERS):
        assert int(members.state(member).num_updates) == 20
        assert_close(params(members, member), one_by_one[member])


@pytest.mark.slow
def test_a_batch_advances_members_by_numbers_of_their_own(one_by_one, monkeypatch):
    monkeypatch.setattr(program, "_runs_as_batch", lambda device: True)
    members = make_program()
    members.advance({0: 5, 1: 20})
    members.advance({0: 15, 2: 20})
    for member in range(MEMBERS):
        assert int(members.state(member).num_updates) == 20
        assert_close(params(members, member), one_by_one[member])


def test_one_number_of_updates_copies_no_replay(monkeypatch):
    monkeypatch.setattr(program, "_runs_as_batch", lambda device: True)
    members = make_program()
    rings = sum(leaf.nbytes for leaf in jax.tree.leaves(members._state.extra))
    assert rings > MEMBERS * CAPACITY * 16  # four float32 numbers of each step
    assert members._advance.memory_analysis().temp_size_in_bytes < rings // 10
