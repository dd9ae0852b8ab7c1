"""Agents that learn from replay, under every plan: the same samples, the same parameters; runs that stop and go on to the bit."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from agents.api import ReplayConfig
from agents.catalog import find_make_agent
from agents.dqn import DQNConfig
from agents.dreamer import DreamerConfig
from agents.muzero import MuZeroConfig
from agents.networks.config import NetworkConfig
from agents.ops.optimizers import OptimizerConfig
from agents.sac import SACConfig
from agents.search.gumbel import GumbelConfig
from agents.world_models.sizes import WorldModelConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.checkpoints.store import CheckpointStore
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.evaluation.predictions.open_loop import predict_open_loop
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.replay.state import inner_state
from jaxsrl.run_plan import RunReport, run
from jaxsrl.runs.summary import summarize
from tests.support.run_configs import run_config

TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}
UPDATES = 12
REPLAY = ReplayConfig(
    capacity=512, batch_size=8, min_size=128, gradient_steps_per_env_step=1 / 32, priority_exponent=0.6
)
"""From the third trajectory of 64 env steps on two gradient steps each; the ring is full after the eighth."""


DQN = DQNConfig(learning_rate=1e-3, n_step=2, double=True, target_update_period=5, total_updates=UPDATES)
# Half of the windows of each sample are searched anew, by a target network that lags behind.
MUZERO = MuZeroConfig(
    gumbel=GumbelConfig(4),
    latent_size=8,
    value_limit=5,
    unroll_steps=2,
    n_step=2,
    target_update_period=5,
    reanalyze_fraction=0.5,
    total_updates=UPDATES,
)
# Windows of two trajectories that begin with stored latent states. With the published epsilon of 1e-20 a gradient that is zero up
# to rounding would move its parameter by a whole learning rate: in a direction of its own in each plan.
DREAMER = DreamerConfig(
    model=WorldModelConfig(deter=16, hidden=8, classes=4, units=8, stoch=4, blocks=2),
    burn_in=2,
    sequence_length=6,
    stride=4,
    imagination_length=3,
    learning_rate=1e-3,
    warmup_steps=2,
    optimizer=OptimizerConfig("laprop", epsilon=1e-3, adaptive_clip=0.3, decay=0.999, momentum=0.9),
)

SAC = SACConfig(num_critics=3, total_updates=UPDATES)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What the scripts in experiments/ save of a run."""

    env: EnvConfig
    network: NetworkConfig
    agent: DQNConfig | MuZeroConfig | DreamerConfig | SACConfig
    run: RunConfig


def train(
    directory: Path,
    policy: str,
    suite: str = "gymnasium",
    replay: ReplayConfig = REPLAY,
    algorithm: DQNConfig | MuZeroConfig | DreamerConfig | SACConfig = DQN,
    frame_stack: int = 1,
    **changes,
) -> RunReport:
    settings = {
        "name": "run",
        "directory": str(directory),
        "plan": policy,
        "num_envs": 16,
        "pool_num_workers": 2,
        "pool_lanes_per_worker": 1,
        "rollout_length": 4,
        "total_env_steps": 16 * 4 * UPDATES,
        "checkpoint_interval_updates": 0,
        "max_policy_lag": 0,
    }
    config = run_config(**{**settings, **changes})
    algorithm = dataclasses.replace(algorithm, replay=replay)
    env_id = "Pendulum-v1" if isinstance(algorithm, SACConfig) else "CartPole-v1"
    env = EnvConfig(env_id, suite=suite, frame_stack=frame_stack)
    network = NetworkConfig() if isinstance(algorithm, DreamerConfig) else NetworkConfig(hidden_sizes=(16,))
    experiment = Experiment(env, network, algorithm, config)
    source = make_env(experiment.env)
    spec = source.spec()
    agent = find_make_agent(algorithm)(algorithm, spec, network)
    plan = PLANS[policy](config, Resources.detect())
    report = run(plan, agent, source, config, experiment=experiment, spec=spec, quiet=True)
    # A signal to the tests, as of a time limit, stops a run in order: it would be compared as if it were whole.
    assert not report.stopped_by
    return report


@pytest.fixture(scope="module")
def serial_parameters(tmp_path_factory):
    """Parameters of the reference."""
    return jax.device_get(train(tmp_path_factory.mktemp("serial"), "serial").state.params)


slow = pytest.mark.slow
CASES = [
    ("serial", {"replay_memory": "host"}),
    pytest.param("single_learner_fine", {}, marks=slow),
    pytest.param("single_learner_coarse", {}, marks=slow),
    pytest.param("distributed_replay", {}, marks=slow),
    ("distributed_replay", {"learner_num_devices": 2}),
    pytest.param(
        "decoupled", {"learner_num_devices": 2, "inference_num_devices": 2, "inference_num_servers": 2}, marks=slow
    ),
    pytest.param("multiple_learners", {"learner_num_devices": 2, "replay_memory": "host"}, marks=slow),
    pytest.param("multiple_learners", {"learner_num_devices": 4, "pool_num_workers": 4}, marks=slow),
]


@pytest.mark.parametrize(
    ("policy", "changes"), CASES, ids=lambda value: value if isinstance(value, str) else str(value)
)
def test_every_plan_with_replay_matches_serial(tmp_path, serial_parameters, policy, changes):
    report = train(tmp_path, policy, **changes)
    same(report.state.params, serial_parameters, **TOLERANCE)


MUZERO_CASES = [
    ("serial", {"replay_memory": "host", "frame_stack": 2}),
    pytest.param("distributed_replay", {"learner_num_devices": 2}, marks=slow),
    pytest.param("single_learner_fine", {}, marks=slow),
    pytest.param("single_learner_coarse", {}, marks=slow),
    pytest.param(
        "decoupled", {"learner_num_devices": 2, "inference_num_devices": 2, "inference_num_servers": 2}, marks=slow
    ),
    pytest.param("multiple_learners", {"learner_num_devices": 2}, marks=slow),
]


@pytest.mark.parametrize(
    ("policy", "changes"), MUZERO_CASES, ids=lambda value: value if isinstance(value, str) else str(value)
)
def test_every_plan_with_search_and_reanalysis_matches_serial(tmp_path, policy, changes):
    frame_stack = changes.get("frame_stack", 1)
    serial = train(tmp_path / "serial", "serial", algorithm=MUZERO, frame_stack=frame_stack)
    report = train(tmp_path / "plan", policy, algorithm=MUZERO, **changes)
    assert report.num_updates == UPDATES
    same(report.state.params, serial.state.params, **TOLERANCE)


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        pytest.param("serial", {"replay_memory": "host"}, marks=slow),
        pytest.param("single_learner_fine", {}, marks=slow),
        pytest.param("single_learner_coarse", {}, marks=slow),
        pytest.param("distributed_replay", {"learner_num_devices": 2}, marks=slow),
        pytest.param(
            "decoupled", {"learner_num_devices": 2, "inference_num_devices": 2, "inference_num_servers": 2}, marks=slow
        ),
        pytest.param("multiple_learners", {"learner_num_devices": 2}, marks=slow),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value),
)
def test_every_plan_with_a_world_model_matches_serial(tmp_path, policy, changes):
    # On two devices, two gradient steps: every further one enlarges the rounding of sums over both.
    updates = 3 if "learner_num_devices" in changes else UPDATES
    settings = {"algorithm": DREAMER, "total_env_steps": 16 * 4 * updates}
    serial = train(tmp_path / "serial", "serial", **settings)
    report = train(tmp_path / "plan", policy, **settings, **changes)
    same(world_model_leaves(report), world_model_leaves(serial), rtol=TOLERANCE["rtol"], atol=5e-5)


@slow
@pytest.mark.parametrize(
    ("policy", "algorithm"),
    # In actors a world model differs by rounding: see the test above, which has a tolerance.
    [("decoupled", SAC), ("decoupled", DREAMER), ("single_learner_coarse", SAC)],
    ids=["server_of_sac", "server_of_dreamer", "actor_of_sac"],
)
def test_acting_elsewhere_needs_published_parameters_only(tmp_path, policy, algorithm):
    """Servers and actors get neither critics nor decoders; with as many rows in a call the run is equal to the bit."""
    serial = train(tmp_path / "serial", "serial", algorithm=algorithm)
    report = train(tmp_path / "plan", policy, algorithm=algorithm, pool_num_workers=1)
    same(networks(report), networks(serial), rtol=0, atol=0)
    assert not {"critic", "decoder", "value"} & set(report.state.params)


@slow
def test_checkpoints_of_world_models_predict(tmp_path):
    report = train(tmp_path, "serial", algorithm=DREAMER, total_env_steps=16 * 4 * 3)
    loaded = load_agent(report.directory)
    same((loaded.params, loaded.extra), networks(report), rtol=0, atol=0)
    open_loop = predict_open_loop(loaded.agent, loaded.params, loaded.extra, loaded.source)
    assert np.isfinite(list(open_loop.errors().values())).all()


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("serial", {"replay_prepare_devices": 1}),
        pytest.param("distributed_replay", {"replay_prepare_devices": 2, "learner_num_devices": 2}, marks=slow),
        pytest.param("decoupled", {"replay_prepare_devices": 1}, marks=slow),
    ],
    ids=["serial", "distributed_replay", "decoupled"],
)
def test_samples_prepared_elsewhere_without_lag_are_equal(tmp_path, policy, changes):
    without = {**changes, "replay_prepare_devices": 0}
    reference = train(tmp_path / "reference", policy, algorithm=MUZERO, replay_memory="host", **without)
    report = train(tmp_path / "prepared", policy, algorithm=MUZERO, replay_memory="host", **changes)
    same(report.state, reference.state, rtol=0, atol=0)


@slow
def test_runs_with_late_preparation_resume_bit_for_bit(tmp_path):
    replay = dataclasses.replace(REPLAY, gradient_steps_per_env_step=0.125, priority_delay=3)
    settings = {"replay_memory": "host", "replay_prepare_devices": 2, "replay_prepare_lag": 3, "max_policy_lag": 1}
    whole = train(tmp_path / "whole", "serial", replay=replay, algorithm=MUZERO, **settings)
    for updates in (5, UPDATES):
        settings["total_env_steps"] = 16 * 4 * updates
        resumed = train(tmp_path / "parts", "serial", replay=replay, algorithm=MUZERO, **settings)
    same(resumed.state, whole.state, rtol=0, atol=0)
    assert resumed.metrics == whole.metrics


@slow
@pytest.mark.parametrize("algorithm", [MUZERO, DREAMER], ids=["search", "world_model"])
def test_device_loop_with_a_model_matches_serial(tmp_path, algorithm):
    updates, tolerance = (UPDATES, TOLERANCE) if algorithm is MUZERO else (3, {"rtol": 1e-4, "atol": 5e-5})
    settings = {"algorithm": algorithm, "total_env_steps": 16 * 4 * updates}
    serial = train(tmp_path / "serial", "serial", "jax", **settings)
    report = train(tmp_path / "device", "device_only", "jax", learner_num_devices=2, **settings)
    same(report.state.params, serial.state.params, **tolerance)


@slow
def test_device_loop_with_replay_matches_serial(tmp_path):
    serial = train(tmp_path / "serial", "serial", "jax")
    report = train(tmp_path / "device", "device_only", "jax", learner_num_devices=2)
    same(report.state.params, serial.state.params, **TOLERANCE)


@pytest.mark.parametrize(
    ("policy", "suite", "changes"),
    [
        pytest.param("single_learner_fine", "gymnasium", {"max_policy_lag": 1}, marks=slow),
        ("distributed_replay", "gymnasium", {"max_policy_lag": 1}),
        pytest.param("device_only", "jax", {}, marks=slow),
    ],
)
def test_replay_runs_resume_bit_for_bit(tmp_path, policy, suite, changes):
    replay = dataclasses.replace(REPLAY, priority_delay=1)
    whole = train(tmp_path / "whole", policy, suite, replay, **changes)
    for updates in (5, UPDATES):
        resumed = train(tmp_path / "parts", policy, suite, replay, total_env_steps=16 * 4 * updates, **changes)
    same(resumed.state, whole.state, rtol=0, atol=0)
    assert resumed.metrics == whole.metrics


@slow
@pytest.mark.parametrize("algorithm", [MUZERO, DREAMER], ids=["search", "world_model"])
@pytest.mark.parametrize(
    ("policy", "suite"), [("serial", "gymnasium"), ("single_learner_fine", "gymnasium"), ("device_only", "jax")]
)
def test_runs_with_a_model_resume_bit_for_bit(tmp_path, policy, suite, algorithm):
    whole = train(tmp_path / "whole", policy, suite, algorithm=algorithm, max_policy_lag=1)
    for updates in (5, UPDATES):
        steps = 16 * 4 * updates
        resumed = train(tmp_path / "parts", policy, suite, algorithm=algorithm, max_policy_lag=1, total_env_steps=steps)
    same(resumed.state, whole.state, rtol=0, atol=0)
    assert resumed.metrics == whole.metrics


@pytest.mark.slow
def test_unsaved_experience_is_collected_again(tmp_path, capsys):
    train(tmp_path, "serial", total_env_steps=16 * 4 * 5, checkpoint_include_replay=False)
    report = train(tmp_path, "serial", checkpoint_include_replay=False)
    assert "holds no experience" in (report.directory / "log.txt").read_text()
    assert report.num_updates == UPDATES


@pytest.mark.parametrize(
    ("plans", "suite", "memory"),
    [
        # A vector environment cannot return to its state.
        (("serial", "serial"), "gymnasium_vector", "device"),
        pytest.param(("serial", "serial"), "gymnasium_vector", "host", marks=slow),
        # Another kind of plan restores no environments.
        pytest.param(("device_only", "serial"), "jax", "host", marks=slow),
        pytest.param(("serial", "device_only"), "jax", "device", marks=slow),
    ],
)
def test_episodes_that_cannot_go_on_are_not_joined(tmp_path, plans, suite, memory):
    for policy, updates, kept in zip(plans, (3, 4), ("device", memory), strict=True):
        train(tmp_path, policy, suite, total_env_steps=16 * 4 * updates, replay_memory=kept)
    restored = CheckpointStore(tmp_path / "run" / "checkpoints").restore_newest()
    assert restored is not None
    steps = {name.rpartition(".")[2]: array for name, array in restored[1].items() if ".storage" in name}
    assert steps["is_first"][12].all()
    assert not steps["valid"][11].any()
    assert steps["valid"][[10, 12]].any()


@slow
def test_host_experience_resumes_on_a_device(tmp_path):
    whole = train(tmp_path / "whole", "serial")
    train(tmp_path / "parts", "serial", total_env_steps=16 * 4 * 5, replay_memory="host")
    resumed = train(tmp_path / "parts", "serial", replay_memory="device")
    same(resumed.state.params, whole.state.params, **TOLERANCE)


def test_evaluation_does_not_load_experience(tmp_path):
    report = train(tmp_path, "serial", total_env_steps=16 * 4 * 3)
    loaded = load_agent(report.directory)
    assert loaded.agent.name == "dqn"
    same(loaded.params, report.state.params, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 64, "min_size": 64}, "replay.capacity is too small: 64 env steps"),
        ({"capacity": 10**9}, r"takes [\d,]+ bytes of this machine's memory, of which [\d,]+ are free"),
        ({"capacity": 140, "min_size": 140}, "replay.min_size cannot be reached: it is 140, but only 128"),
    ],
)
def test_invalid_replay_sizes_are_rejected_before_start(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        train(tmp_path, "serial", replay=dataclasses.replace(REPLAY, **changes))
    assert not list(tmp_path.iterdir())


def networks(report):
    """All networks of a run, with what the agent counts and tracks."""
    state = inner_state(report.state)
    return state.params, state.extra


def world_model_leaves(report):
    """All networks of Dreamer but the output layer of the value.

    Its gradient depends on values, which are means over numbers up to e^20. While all are about equally likely, the rounding of
    such a mean is about 0.1.
    """
    leaves = jax.tree_util.tree_leaves_with_path(networks(report))
    return [
        leaf
        for path, leaf in leaves
        if not ("value" in jax.tree_util.keystr(path) and "'output'" in jax.tree_util.keystr(path))
    ]


def same(mine, reference, **tolerance):
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), **tolerance)


@slow
@pytest.mark.parametrize(("policy", "suite"), [("serial", "gymnasium"), ("device_only", "jax")])
def test_runs_end_at_their_budget_of_gradient_steps(tmp_path, policy, suite):
    budgets = {"total_env_steps": 16 * 4 * 1000}
    first = train(tmp_path / "parts", policy, suite, gradient_steps=5, **budgets)
    assert (first.num_updates, steps_taken(first)) == (5, 6), "two steps in each update from the third on"
    assert first.stop_reason == "5 gradient steps are done (--run.gradient-steps)"
    assert (first.directory / "checkpoints" / "5").is_dir()
    assert summarize(first.directory).state == "finished"
    resumed = train(tmp_path / "parts", policy, suite, gradient_steps=12, **budgets)
    whole = train(tmp_path / "whole", policy, suite, gradient_steps=12, **budgets)
    assert (resumed.num_updates, steps_taken(resumed), steps_taken(whole)) == (8, 12, 12)
    for one, other in zip(jax.tree.leaves(resumed.state.params), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_array_equal(one, other)


def steps_taken(report):
    """Gradient steps that the agent has counted."""
    extra = report.state.extra
    return int(getattr(extra, "extra", extra).num_gradient_steps)
