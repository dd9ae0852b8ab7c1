"""Bytes of a plan against arrays that are really allocated, and the words for them."""

import dataclasses

import jax
import numpy as np
import pytest

from agents.dreamer import DreamerConfig, make_dreamer
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from agents.world_models.sizes import WorldModelConfig
from envpool_bridge.shm.layout import make_layout
from envpool_bridge.shm.slots import view_slots
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.cost.channel_bytes import bytes_of_plan, params_bytes_of
from jaxsrl.plan.fragment import Carries
from jaxsrl.plan.policies import PLANS
from jaxsrl.terminal.format import format_bytes, format_ranges
from tests.support.run_configs import run_config

SPEC = EnvSpec("test", ArraySpec((3, 5), "uint8"), DiscreteSpec(4))
FOUR_GPUS = Resources(8, "gpu", 4)
RUN = run_config(
    num_envs=64, pool_num_workers=4, rollout_length=8, learner_num_devices=2, max_policy_lag=2, inference_num_servers=2
)
PARAMS = 1000
WITH_ENVIRONMENTS = [name for name in PLANS if name != "offline"]


def sized(policy):
    plan = PLANS[policy](RUN, FOUR_GPUS)
    layout = make_layout(SPEC, plan.shape, {"log_prob": ArraySpec((), "float32")})
    return plan, layout, bytes_of_plan(plan, layout, PARAMS)


def of(policy, carries, source=None):
    plan, layout, sizes = sized(policy)
    for channel, size in zip(plan.channels, sizes.channels, strict=True):
        if channel.carries is carries and source in (None, channel.source):
            return plan, layout, size
    raise AssertionError(f"{policy} carries no {carries}")


@pytest.mark.parametrize("policy", WITH_ENVIRONMENTS)
def test_slots_are_as_large_as_what_is_allocated_for_them(policy):
    plan, layout, sizes = sized(policy)
    buffer = bytearray(layout.total_bytes)
    slots = view_slots(layout, memoryview(buffer))
    assert sizes.slots == len(buffer) * plan.environments.replicas
    one = slots[0]
    last = one.extras["log_prob"]
    start = one.observation.__array_interface__["data"][0]
    end = last.__array_interface__["data"][0] + last.nbytes
    assert 0 <= sizes.slot - (end - start) < 64  # what alignment adds after the last array


@pytest.mark.parametrize("policy", WITH_ENVIRONMENTS)
def test_observations_and_actions_are_those_of_a_lane_at_a_step(policy):
    plan, layout, observations = of(policy, Carries.OBSERVATIONS)
    slot = view_slots(layout, memoryview(bytearray(layout.total_bytes)))[0]
    lane = plan.shape.lane_rows(0)
    assert observations.item == slot.observation[0, lane].nbytes + slot.is_first[0, lane].nbytes
    assert of(policy, Carries.ACTIONS)[2].item == slot.action[0, lane].nbytes


@pytest.mark.parametrize(("policy", "held"), [("single_learner_fine", 4 * 1), ("multiple_learners", 4 * 2)])
def test_a_channel_holds_its_capacity_for_every_replica(policy, held):
    plan, layout, trajectories = of(policy, Carries.TRAJECTORIES)
    assert plan.shape.num_slots == 4
    assert (trajectories.item, trajectories.total) == (layout.slot_bytes, layout.slot_bytes * held)


def test_parameters_are_copied_per_reader_but_not_per_block():
    assert of("single_learner_fine", Carries.PARAMETERS)[2].total == PARAMS * 3  # the newest, and two that lag
    assert of("decoupled", Carries.PARAMETERS)[2].total == PARAMS * 3 * 2
    assert of("single_learner_coarse", Carries.PARAMETERS)[2].total == PARAMS * 2


def test_gradients_are_as_large_as_parameters_one_a_replica():
    assert of("central", Carries.GRADIENTS)[2].total == PARAMS * 2
    assert of("central", Carries.PARAMETERS, "server")[2].item == PARAMS


def test_parameters_are_counted_without_being_allocated():
    agent = make_ppo(PPOConfig(), SPEC, NetworkConfig(hidden_sizes=(7,)))
    allocated = jax.tree.leaves(agent.init(jax.random.key(0)).params)
    assert params_bytes_of(agent) == sum(np.asarray(leaf).nbytes for leaf in allocated)


@pytest.mark.parametrize("policy", ["single_learner_coarse", "decoupled", "distributed_replay"])
def test_networks_that_only_learn_are_not_counted(policy):
    config = DreamerConfig(model=WorldModelConfig(deter=16, hidden=8, classes=4, units=8, stoch=4, blocks=2))
    agent = make_dreamer(config, SPEC, NetworkConfig())
    state = agent.init(jax.random.key(0))
    acting = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state.params))
    plan = PLANS[policy](RUN, FOUR_GPUS)
    sizes = bytes_of_plan(plan, make_layout(SPEC, plan.shape, {}), params_bytes_of(agent))
    items = [
        size.item
        for channel, size in zip(plan.channels, sizes.channels, strict=True)
        if channel.carries is Carries.PARAMETERS
    ]
    assert items == [acting] * len(items) != []
    assert not {"decoder", "reward", "continue", "value"} & set(state.params)


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1300, "1.27 KiB"), (1010 * 1024, "1010 KiB"), (3 << 30, "3 GiB")],
)
def test_bytes_have_a_unit_that_fits(number, words):
    assert format_bytes(number) == words


@pytest.mark.parametrize(("numbers", "words"), [((), ""), ((4,), "4"), ((0, 1, 2, 3, 6), "0-3, 6"), ((2, 1), "2, 1")])
def test_indices_are_said_in_ranges(numbers, words):
    assert format_ranges(numbers) == words


def test_channel_bytes_count_leaves_and_one_stacked_frame():
    picture = ArraySpec((4, 84, 84), "uint8", frames=4)
    spec = dataclasses.replace(SPEC, observation={"picture": picture, "speed": ArraySpec((3,), "float32")})
    plan = PLANS["single_learner_fine"](RUN, FOUR_GPUS)
    sizes = bytes_of_plan(plan, make_layout(spec, plan.shape, {}), 0)
    items = {channel.carries: size.item for channel, size in zip(plan.channels, sizes.channels, strict=True)}
    rows = plan.shape.rows_per_lane
    assert items[Carries.OBSERVATIONS] == rows * (84 * 84 + 3 * 4 + 1)
