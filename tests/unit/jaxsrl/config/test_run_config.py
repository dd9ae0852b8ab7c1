"""RunConfig: what it refuses, and configurations on their way to a file and back."""

import dataclasses
import json
import math
import operator
from typing import Literal, get_origin, get_type_hints

import pytest

from agents.catalog import AGENTS
from agents.networks.config import NetworkConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from experiments import ppo_atari, ppo_cartpole, ppo_mujoco
from jaxsrl.config.changes import with_options
from jaxsrl.config.run_config import MAY_CHANGE, OPERATION, RunConfig
from jaxsrl.config.serialization import differences, from_json, to_json

POSITIVE = [
    "run.total_env_steps",
    "run.num_envs",
    "run.rollout_length",
    "run.seeds",
    "run.seeds_at_once",
    "pool.num_workers",
    "pool.lanes_per_worker",
    "inference.num_devices",
    "inference.num_servers",
    "learner.num_devices",
    "learner.sample_reuse",
    "checkpoint.max_to_keep",
]
NOT_NEGATIVE = [
    "run.seed",
    "pool.workers_per_lane",
    "run.max_policy_lag",
    "run.shutdown_timeout_seconds",
    "learner.num_replicas",
    "learner.max_gradient_staleness",
    "learner.trajectory_buffer_size",
    "learner.max_nonfinite_updates",
    "checkpoint.interval_updates",
    "cluster.num_hosts",
    "cluster.host_memory_gib",
    "cluster.placement_timeout_seconds",
    "cluster.num_inference_servers",
    "machine.num_cpu_devices",
    "metrics.interval_seconds",
    "eval.final_episodes",
    "eval.every",
    "run.max_hours",
    "run.plateau_env_steps",
]


def changed(option, value):
    """Returns the value that an option of a RunConfig has after it was changed."""
    path = option.removeprefix("run.")
    run = with_options(RunConfig(), {path: value})
    return operator.attrgetter(path)(run)


@pytest.mark.parametrize("option", POSITIVE)
def test_sizes_start_at_one(option):
    assert changed(option, 1) == 1
    with pytest.raises(UserError, match=f"^{option} must be at least 1: got 0$"):
        changed(option, 0)


@pytest.mark.parametrize("option", NOT_NEGATIVE)
def test_counts_and_times_start_at_zero(option):
    assert changed(option, 0) == 0
    with pytest.raises(UserError, match=f"^{option} must not be negative: got -1$"):
        changed(option, -1)


@pytest.mark.parametrize("name", ["a/b", "/tmp/run", ".", ".."])
def test_a_run_cannot_be_named_out_of_its_directory(name):
    with pytest.raises(UserError, match="run.name must be a plain directory name"):
        RunConfig(name=name)


@pytest.mark.parametrize(
    ("total_env_steps", "num_updates"), [(1, 1), (4096, 1), (4097, 2), (8192, 2), (800_000, 196)], ids=str
)
def test_the_budget_is_rounded_up_to_whole_updates(total_env_steps, num_updates):
    assert RunConfig(total_env_steps=total_env_steps, num_envs=128, rollout_length=32).num_updates == num_updates


@pytest.mark.parametrize("module", [ppo_cartpole, ppo_mujoco, ppo_atari])
def test_every_experiment_survives_its_file(module):
    experiment = module.EXPERIMENT
    saved = json.loads(json.dumps(to_json(experiment)))
    assert set(saved) == {"env", "agent", "network", "run", "policies", "imitation", "make_agent"}
    assert from_json(EnvConfig, saved["env"]) == experiment.env
    assert from_json(NetworkConfig, saved["network"]) == experiment.network
    assert from_json(AGENTS["ppo"].config, saved["agent"]) == experiment.agent
    assert from_json(RunConfig, saved["run"]) == experiment.run


def literal_fields(config):
    return [name for name, hint in get_type_hints(config).items() if get_origin(hint) is Literal]


@pytest.mark.parametrize(
    ("config", "name"), [(each.config, name) for each in AGENTS.values() for name in literal_fields(each.config)]
)
def test_an_algorithm_rejects_a_value_that_is_no_choice(config, name):
    with pytest.raises(UserError, match=rf"^{name} must be one of .*: got 'other'$"):
        config(**{name: "other"})


@pytest.mark.parametrize("part", [field.name for field in dataclasses.fields(RunConfig)])
def test_a_run_rejects_a_value_that_is_no_choice(part):
    value = getattr(RunConfig(), part)
    for name in literal_fields(type(value)) if dataclasses.is_dataclass(value) else ():
        with pytest.raises(UserError, match=rf"^{part}.{name} must be one of .*: got 'other'$"):
            RunConfig(**{part: dataclasses.replace(value, **{name: "other"})})


@pytest.mark.parametrize("checkpoints", [{"interval_updates": 0}, {"interval_updates": 4}, {"max_to_keep": 1}])
def test_rolling_back_needs_an_earlier_checkpoint(checkpoints):
    options = {"learner.on_nonfinite": "roll_back", "learner.max_nonfinite_updates": 10}
    assert with_options(RunConfig(), {**options, "checkpoint.interval_updates": 5}).checkpoint.max_to_keep == 3
    with pytest.raises(UserError, match="roll_back needs a checkpoint from before the 10 skipped updates"):
        with_options(RunConfig(), {**options, **{f"checkpoint.{name}": value for name, value in checkpoints.items()}})


def test_a_setting_that_an_older_file_lacks_gets_its_default():
    assert from_json(RunConfig, {"seed": 7}) == RunConfig(seed=7)


def test_all_settings_that_are_not_known_are_named():
    with pytest.raises(UserError, match="RunConfig has no field hue, shade: the file was written by another version"):
        from_json(RunConfig, {"shade": 1, "seed": 7, "hue": 2})


def test_a_file_is_checked_as_a_command_line_is():
    with pytest.raises(UserError, match="run.num_envs must be at least 1"):
        from_json(RunConfig, {"num_envs": 0})


def test_mappings_and_nested_sequences_become_json():
    @dataclasses.dataclass(frozen=True)
    class Tree:
        layers: tuple[tuple[int, str], ...]
        named: dict

    tree = Tree(((1, "a"), (2, "b")), {3: NetworkConfig(hidden_sizes=(8,))})
    assert to_json(tree) == {"layers": [[1, "a"], [2, "b"]], "named": {"3": to_json(NetworkConfig(hidden_sizes=(8,)))}}


def test_equal_trees_have_no_differences():
    tree = to_json(ppo_cartpole.EXPERIMENT)
    assert differences(tree, json.loads(json.dumps(tree))) == []


def test_every_difference_is_listed_in_order_of_its_path():
    old = {"run": {"seed": 0, "name": "x"}, "agent": {"discount": 0.99}, "same": {"a": [1, 2]}, "gone": 1}
    new = {"run": {"seed": 1, "name": "x"}, "agent": {"discount": 0.9}, "same": {"a": [1, 2]}, "come": {"b": 2}}
    assert differences(old, new) == [
        "agent.discount: 0.99 -> 0.9",
        "come.b: None -> 2",
        "gone: 1 -> None",
        "run.seed: 0 -> 1",
    ]


def test_a_bare_value_differs_under_the_path_it_is_given():
    assert differences("ppo", "vtrace", "agent") == ["agent: 'ppo' -> 'vtrace'"]


def test_a_missing_part_differs_in_each_field():
    assert differences({"seed": 0}, {"seed": 0, "pool": {"num_workers": 2}}) == ["pool.num_workers: None -> 2"]
    assert differences({"pool": {"num_workers": 2}}, {}) == ["pool.num_workers: 2 -> None"]


def option_paths(config, path):
    """Returns the paths of all options in a configuration and its parts."""
    if not dataclasses.is_dataclass(config):
        return {path}
    return {
        inner
        for field in dataclasses.fields(config)
        for inner in option_paths(getattr(config, field.name), f"{path}.{field.name}")
    }


def test_resumable_option_changes_exist_and_change_no_step():
    assert option_paths(RunConfig(), "run") >= MAY_CHANGE
    prepared = {"run.replay.prepare_devices", "run.replay.prepare_lag"}
    computed = {"run.seed", "run.num_envs", "run.rollout_length", "run.max_policy_lag", "run.pool.num_workers"}
    assert not OPERATION & (computed | prepared | {"run.inference.batching", "run.learner.num_devices"})
    assert not MAY_CHANGE & {"run.seed", "run.num_envs", "run.rollout_length"}


@pytest.mark.parametrize(
    "path", ["max_hours", "target_return", "metrics.interval_seconds", "cluster.placement_timeout_seconds"]
)
def test_a_run_rejects_a_value_that_is_no_number(path):
    with pytest.raises(UserError, match=rf"{path} must .*: got nan"):
        with_options(RunConfig(), {path: math.nan})


def test_next_stop_is_where_a_version_is_due():
    run = RunConfig(num_envs=4, rollout_length=8, total_env_steps=320)
    config = with_options(run, {"eval.every": 100, "checkpoint.keep_every": 80})
    stops = [0]
    while stops[-1] < config.num_updates:
        stops.append(config.next_stop(stops[-1]))
    # Env steps 80, 100, 160, 200, 240, 300 and 320, in updates of 32.
    assert stops[1:] == [3, 4, 5, 7, 8, 10]
