"""Environments on the device: the parameters of the serial plan, on any number of devices, however updates are dispatched."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.api import Trajectory
from agents.networks.config import NetworkConfig
from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, step_rows
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import view_slots
from jaxsrl.bench.on_device import bench_on_device
from jaxsrl.bench.rivals.purejaxrl_ppo import Sizes, make_flat_ppo
from jaxsrl.collect.inference.act import make_act, row_keys
from jaxsrl.device_loop.loop import DeviceLearner
from jaxsrl.device_loop.program import make_run_keys
from jaxsrl.envs.cartpole import CartPole
from jaxsrl.envs.cpu_rows import JaxRows
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.metrics.episodes import EpisodeTotals

ENV = CartPole(max_steps=30)
ROWS, STEPS, SEED, UPDATES = 16, 8, 0, 10
AGENT = make_ppo(
    PPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2), ENV.spec(), NetworkConfig(hidden_sizes=(16,))
)
INIT_KEY, ACT_KEY, UPDATE_KEY = jax.random.split(jax.random.key(SEED), 3)


def learner(num_devices=1, state=None, saved=None) -> DeviceLearner:
    mesh = LearnerMesh(jax.local_devices()[:num_devices])
    keys = make_run_keys(SEED, ACT_KEY, UPDATE_KEY, ROWS)
    return DeviceLearner(AGENT, ENV, mesh, STEPS, state or AGENT.init(INIT_KEY), keys, saved)


def leaves(state) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves(state)]


def assert_same_bits(one: DeviceLearner, other: DeviceLearner) -> None:
    assert one.num_updates == other.num_updates
    for a, b in zip(leaves(one.state), leaves(other.state), strict=True):
        np.testing.assert_array_equal(a, b)
    ours, theirs = one.save_arrays(), other.save_arrays()
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.fixture(scope="module")
def trained_by_loop():
    """The learner state after ten updates of a plain loop: host rows, one act a step, one update a trajectory."""
    layout = make_layout(ENV.spec(), PoolShape(1, 1, 1, ROWS, STEPS, 1), AGENT.extras)
    slot = view_slots(layout, memoryview(bytearray(layout.total_bytes)))[0]
    rows, act, update = JaxRows(ENV, range(ROWS), SEED), make_act(AGENT), jax.jit(AGENT.update)
    keys, state = row_keys(ACT_KEY, range(ROWS)), AGENT.init(INIT_KEY)
    rows.reset(EpisodeReset((0,) * ROWS, (None,) * ROWS), FirstRows(slot.observation[0], slot.is_first[0]))
    for n in range(UPDATES):
        step_rows(slot, slice(0, STEPS)).prepare()
        for t in range(STEPS):
            now = np.full(ROWS, n * STEPS + t, np.uint32)
            action, extras, _ = act(state.params, slot.observation[t], (), slot.is_first[t], keys, now)
            slot.action[t], slot.policy_version[t] = action, n
            slot.extras["behavior_log_prob"][t] = extras["behavior_log_prob"]
            rows.step(slot.action[t], step_rows(slot, t))
        names = ("observation", "is_first", "action", "reward", "terminated", "truncated", "valid", "policy_version")
        batch = {name: jnp.array(getattr(slot, name)) for name in names}
        extras = {"behavior_log_prob": jnp.array(slot.extras["behavior_log_prob"])}
        state, _ = update(state, Trajectory(**batch, extras=extras), jax.random.fold_in(UPDATE_KEY, n))
        slot.observation[0], slot.is_first[0] = slot.observation[-1].copy(), slot.is_first[-1].copy()
    return leaves(state)


@pytest.mark.parametrize("num_devices", [4, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2))])
def test_device_plan_parameters_match_the_host_plan(trained_by_loop, num_devices):
    trained = learner(num_devices)
    trained.step(4)
    trained.step(6)
    assert trained.num_updates == trained.stats.updates == int(trained.state.num_updates) == UPDATES
    for expected, got in zip(trained_by_loop, leaves(trained.state), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_devices", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_device_loop_does_not_depend_on_dispatch_size(num_devices):
    one, four = learner(num_devices), learner(num_devices)
    for _ in range(12):
        one.step(1)
    for _ in range(3):
        four.step(4)
    assert_same_bits(one, four)
    for name, value in one.metrics.items():
        assert float(value) == float(four.metrics[name]), name


@pytest.mark.parametrize("num_devices", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_resumed_device_learner_is_bit_identical(num_devices):
    whole = learner(num_devices)
    whole.step(4)
    state, saved = jax.device_get(whole.state), whole.save_arrays()
    whole.step(6)
    resumed = learner(num_devices, state, saved)
    assert resumed.num_updates == 4
    resumed.step(6)
    assert_same_bits(whole, resumed)


def test_device_loop_rejects_rows_of_another_run():
    saved = learner().save_arrays()
    saved.pop(next(name for name in saved if "episode" in name))
    with pytest.raises(UserError, match="missing"):
        learner(saved=saved)


@pytest.mark.slow
def test_device_loop_counts_episodes_once():
    often, rarely = learner(), learner()
    many, few = EpisodeTotals(), EpisodeTotals()
    for _ in range(UPDATES):
        often.step(1)
        often.take_episodes(many)
    rarely.step(UPDATES)
    rarely.take_episodes(few)
    rarely.take_episodes(few)
    assert many.num_episodes == few.num_episodes > 20
    assert few.metrics()["episode/return_max"] <= ENV.max_steps
    # Taking clears what has finished and nothing else: the episodes under way are the same.
    ours, theirs = often.save_arrays(), rarely.save_arrays()
    running = [name for name in ours if "running" in name]
    assert len(running) == 2
    for name in running:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_the_program_moves_no_rows_between_devices():
    text = learner(4)._advance.as_text()  # pyright: ignore[reportAttributeAccessIssue]
    assert "all-reduce" in text  # gradients
    for moved in ("all-gather", "all-to-all", "collective-permute"):
        assert moved not in text


def test_a_run_ends_each_dispatch_where_a_checkpoint_is_due():
    trained, seen = learner(), []
    while trained.num_updates < 11:
        trained.advance(11, 4)
        seen.append(trained.num_updates)
    assert {4, 8, 11} <= set(seen)
    assert trained.num_updates == 11


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_device_plan_reaches_475_on_cartpole(seed):
    env, num_rows, num_steps, total = CartPole(), 128, 32, 366  # sizes and agent of experiments/ppo_cartpole.py
    config = PPOConfig(
        learning_rate=7e-4,
        learning_rate_schedule=ScheduleConfig("linear"),
        entropy_coef=0.005,
        num_minibatches=8,
        total_updates=total,
    )
    agent = make_ppo(config, env.spec(), NetworkConfig(hidden_sizes=(64, 64)))
    init, act, update = jax.random.split(jax.random.key(seed), 3)
    start, totals = time.perf_counter(), EpisodeTotals()
    mesh = LearnerMesh(jax.local_devices()[:1])
    trained = DeviceLearner(agent, env, mesh, num_steps, agent.init(init), make_run_keys(seed, act, update, num_rows))

    def reached() -> bool:
        trained.take_episodes(totals)
        return totals.num_episodes >= 100 and totals.metrics()["episode/return_mean"] >= 475.0

    while trained.num_updates < total and not reached():
        trained.advance(total, 0)
    seconds = time.perf_counter() - start
    print(f"seed {seed}: {totals.metrics()} after {trained.num_updates} updates, {seconds:.1f} s with compiling")
    assert reached()


@pytest.mark.slow
def test_device_bench_measures_every_program():
    result = bench_on_device(num_envs=(4,), rollout_length=8, seconds=0.1)
    assert [size["num_envs"] for size in result["sizes"]] == [4]
    for size in result["sizes"]:
        assert set(size["env_steps_per_second"]) == {"jaxsrl", *result["baselines"]}
        assert set(size["ratio"]) == set(result["baselines"]) >= {"flat_ppo"}
        assert min(*size["env_steps_per_second"].values(), *size["ratio"].values()) > 0
        assert size["rounds"] >= 1


@pytest.mark.slow
def test_the_benchmark_compares_with_a_program_that_learns():
    init, advance = make_flat_ppo(CartPole(), Sizes(32, 64, 4, 4), (32,), 2e-3)
    state = init(jax.random.key(0))
    state = advance(jnp.int32(40), state)
    # A mean over rows wherever they are in their episodes; a uniform policy's is about 12.
    assert float(jnp.mean(state.env_state.num_steps)) > 60.0
