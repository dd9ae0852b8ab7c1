"""Simulated runs against closed forms for cases that have one."""

import dataclasses
from types import SimpleNamespace

import pytest

import jaxsrl.planner.validate
from agents.ppo import PPOConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.shm.layout import PoolShape
from experiments import a2c_cartpole, ppg_cartpole, ppo_cartpole
from jaxsrl.config.run_config import RunConfig
from jaxsrl.experiment import Experiment
from jaxsrl.planner import measure
from jaxsrl.planner.calibration import Calibration, cost_at, load_calibration
from jaxsrl.planner.predict import MSRL, Cluster, predict
from jaxsrl.planner.simulator.scenario import Costs, Network, Scenario
from jaxsrl.planner.simulator.simulate import simulate
from jaxsrl.planner.validate import Point, compare, fit, predict_here, with_handover_cost
from tests.support.run_configs import run_config

ROWS, STEPS = 8, 16
COSTS = Costs(row_seconds=1e-3, part_seconds=2e-3, act=((1, 1e-3), (64, 5e-3)), update_seconds=0.05, update_cores=1)
MANY_CORES = 64
NET = Network("test", 1e9, 1e-4)


def shape(workers: int = 1, lanes: int = 1, lag: int = 1) -> PoolShape:
    return PoolShape(workers, lanes, 1, ROWS, STEPS, lag + 2)


def speed(scenario: Scenario) -> float:
    return simulate(scenario).env_steps_per_second


def test_a_lone_lane_steps_and_waits_for_actions_in_turn():
    step, act = 2e-3 + ROWS * 1e-3, COSTS.act_seconds(ROWS)
    scenario = Scenario(shape(), 1, MANY_CORES, COSTS)
    assert speed(scenario) == pytest.approx(ROWS / (step + act), rel=1e-3)


def test_two_lanes_hide_acting_behind_stepping():
    step = 2e-3 + ROWS * 1e-3
    assert speed(Scenario(shape(lanes=2), 1, MANY_CORES, COSTS)) == pytest.approx(ROWS / step, rel=1e-3)


def test_without_lag_collecting_and_learning_take_turns():
    collecting = STEPS * (2e-3 + ROWS * 1e-3 + COSTS.act_seconds(ROWS))
    scenario = Scenario(shape(lag=0), 0, MANY_CORES, COSTS)
    # The first action of a slot, but no step, waits for the update: what is seen at its beginning was stepped before.
    assert speed(scenario) == pytest.approx(ROWS * STEPS / (collecting + 0.05), rel=1e-3)


def test_a_slow_learner_sets_the_pace():
    slow = dataclasses.replace(COSTS, update_seconds=1.0)
    found = simulate(Scenario(shape(), 1, MANY_CORES, slow))
    assert found.env_steps_per_second == pytest.approx(ROWS * STEPS, rel=1e-3)
    assert found.limit == "learner"


def test_one_core_does_one_thing_at_a_time():
    work = STEPS * (2 * (2e-3 + ROWS * 1e-3) + 2 * COSTS.act_seconds(ROWS)) + 0.05
    scenario = Scenario(shape(workers=2), 1, 1, COSTS)
    assert speed(scenario) == pytest.approx(2 * ROWS * STEPS / work, rel=0.01)


@pytest.mark.parametrize("width", [1.0, 1.25, 2.5])
def test_update_uses_its_cores_for_its_duration(width):
    only_learns = dataclasses.replace(COSTS, row_seconds=0.0, part_seconds=0.0, act=((1, 0.0),), update_cores=width)
    one_core, enough = (speed(Scenario(shape(), 1, cores, only_learns)) for cores in (1, 3))
    assert enough == pytest.approx(ROWS * STEPS / 0.05, rel=1e-3)
    assert one_core == pytest.approx(enough / width, rel=1e-3)


def test_who_acts_rings_for_every_worker_of_a_lane():
    step, act, ring = 2e-3 + ROWS * 1e-3, COSTS.act_seconds(4 * ROWS), 1e-3
    shared = PoolShape(4, 1, 4, ROWS, STEPS, 3)
    scenario = Scenario(shared, 1, MANY_CORES, dataclasses.replace(COSTS, doorbell_seconds=ring))
    assert speed(scenario) == pytest.approx(4 * ROWS / (step + act + 4 * ring), rel=1e-3)


def test_a_narrow_link_bounds_what_comes_in():
    narrow = dataclasses.replace(NET, bytes_per_second=1e6)
    big = dataclasses.replace(COSTS, slot_bytes=1e6, update_cores=0, update_seconds=1e-3)
    found = simulate(Scenario(shape(), 1, MANY_CORES, big, hosts=2, network=narrow))
    assert found.env_steps_per_second == pytest.approx(2 * ROWS * STEPS / 2.0, rel=0.01)
    assert found.limit == "trajectories' link"


def test_learners_wait_for_their_all_reduce():
    scenario = Scenario(
        shape(),
        1,
        MANY_CORES,
        dataclasses.replace(COSTS, update_seconds=1.0, params_bytes=1e9, gradients_per_update=1),
        learners=2,
        network=Network("slow", 1e9, 0.0),
    )
    assert scenario.all_reduce_seconds() == pytest.approx(1.0)
    assert speed(scenario) == pytest.approx(2 * ROWS * STEPS / 2.0, rel=1e-3)


def test_throughput_scales_with_hosts_without_shared_resources():
    fast = dataclasses.replace(COSTS, update_cores=0, update_seconds=1e-3)
    one = speed(Scenario(shape(), 1, MANY_CORES, fast, hosts=1, network=NET))
    assert speed(Scenario(shape(), 1, MANY_CORES, fast, hosts=2, network=NET)) == pytest.approx(2 * one, rel=0.01)


def test_varying_step_times_cost_the_slowest_row():
    steady = Scenario(PoolShape(4, 1, 4, ROWS, STEPS, 3), 1, MANY_CORES, COSTS)
    varied = dataclasses.replace(steady, costs=dataclasses.replace(COSTS, step_cv=1.0))
    assert speed(varied) < 0.95 * speed(steady)


def test_cost_at_is_never_below_the_smallest():
    assert cost_at(((64, 1.0), (128, 1.5)), 256) == pytest.approx(2.5)
    assert cost_at(((64, 1.0), (128, 0.9)), 4096) == pytest.approx(0.9)
    assert cost_at(((64, 2.0),), 32) == pytest.approx(1.0)


def calibration() -> Calibration:
    return Calibration(
        experiment="test",
        env_id="Test-v0",
        cores=2,
        cpu="test",
        row_seconds=1e-3,
        part_seconds=1e-4,
        step_cv=0.2,
        act=((8, 1e-4), (64, 2e-4)),
        update=((64, 0.1), (128, 0.15)),
        update_cores=1.6,
        update_flops=((64, 1e9), (128, 2e9)),
        rollout_length=4,
        doorbell_seconds=3e-6,
        handover_seconds=5e-5,
        copy_bytes_per_second=1e10,
        row_bytes=1e3,
        params_bytes=1e5,
        gradients_per_update=1,
    )


@pytest.mark.parametrize(("module", "steps"), [(ppo_cartpole, 32), (a2c_cartpole, 1), (ppg_cartpole, 0)])
def test_calibration_has_the_gradient_steps_of_the_agent(module, steps):
    agent, _, _ = module.EXPERIMENT.build()
    assert measure._count_gradient_steps(agent) == steps


def test_a_cluster_reduces_once_per_gradient_step():
    measured, single = (dataclasses.replace(calibration(), gradients_per_update=steps) for steps in (32, 1))
    many, one = (each.cluster(shape(), 8, 1, 2, NET, 1e12).all_reduce_seconds() for each in (measured, single))
    assert one == pytest.approx(NET.all_reduce_seconds(1e5, 2))
    assert many == pytest.approx(32 * one)


def test_learners_without_known_gradient_steps_are_refused():
    unknown = dataclasses.replace(calibration(), gradients_per_update=0)
    assert unknown.cluster(shape(), 8, 1, 1, NET, 1e12).all_reduce_seconds() == 0.0
    with pytest.raises(UserError, match="the all-reduces of several learners are unknown"):
        unknown.cluster(shape(), 8, 1, 2, NET, 1e12)


def test_a_calibration_comes_back_from_its_file(tmp_path):
    calibration().save(tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == calibration()
    (tmp_path / "broken.json").write_text('{"experiment": 3}')
    with pytest.raises(UserError, match="no calibration of this version"):
        load_calibration(tmp_path / "broken.json")


def test_a_prediction_counts_every_core_and_names_what_limits_it():
    found = predict(calibration(), Cluster("small", cores=32, gpus=2, cores_per_host=8, rows_per_core=4), updates=2)
    assert (found["cores"], found["hosts"], found["rows"]) == (32, 4, 4 * 7 * 4)
    # Seven of eight cores step, each at most 1 / 1 ms.
    assert 0 < found["env_steps_per_second"] <= 28 / 1e-3
    assert f"{found['limit']} busy" in found


@pytest.mark.parametrize("wrong", [{"cores": 64}, {"network": "pigeons"}])
def test_clusters_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UserError):
        predict(calibration(), dataclasses.replace(MSRL, **wrong))


def test_scenarios_that_make_no_sense_are_refused():
    with pytest.raises(UserError, match="need a network"):
        Scenario(shape(), 1, 1, COSTS, hosts=2)
    with pytest.raises(UserError, match="several learners"):
        Scenario(shape(), 1, 1, COSTS, learners=2)


def test_compare_reports_fastest_and_slowest_runs(monkeypatch):
    speeds = iter([100.0, 300.0, 200.0, 250.0, 150.0, 275.0])  # both points in turn
    monkeypatch.setattr(jaxsrl.planner.validate, "_measure", lambda *_: next(speeds))
    monkeypatch.setattr(jaxsrl.planner.validate, "predict_here", lambda *_: 240.0)
    experiment = Experiment(EnvConfig("CartPole-v1"), PPOConfig())
    found = compare(calibration(), experiment, (Point(64, 1), Point(128, 2)))
    assert [(one["rows"], one["measured"], one["slowest"]) for one in found] == [
        (64, 200.0, 100.0),
        (128, 300.0, 250.0),
    ]
    assert [one["error"] for one in found] == pytest.approx([0.2, -0.2])


def test_fit_uses_the_fastest_reference_run(monkeypatch):
    speeds, config = iter([100.0, 400.0, 300.0, 200.0]), RunConfig()
    monkeypatch.setattr(jaxsrl.planner.validate, "_config", lambda *_: config)
    monkeypatch.setattr(jaxsrl.planner.validate, "_measure", lambda *_: next(speeds))
    monkeypatch.setattr(jaxsrl.planner.validate, "predict_here", lambda *_: 240.0)
    monkeypatch.setattr(jaxsrl.planner.validate, "with_handover_cost", lambda _, __, measured: measured)
    assert fit(calibration(), None, 1.0) == 400.0


def test_timed_excludes_the_preparation(monkeypatch):
    clock, done = [0.0], []

    def taking(name, seconds):
        done.append(name)
        clock[0] += seconds

    monkeypatch.setattr(measure, "_SECONDS", 0.0)
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: clock[0], process_time=lambda: clock[0]))
    assert measure._timed(lambda: taking("call", 2.0), lambda: taking("before", 50.0)) == (2.0, 1.0)
    assert done == ["call", *["before", "call"] * 5]


def test_the_hand_over_is_what_is_missing_of_a_measured_run():
    config = run_config(num_envs=16, pool_num_workers=1, pool_lanes_per_worker=1, rollout_length=4)
    slower = 0.95 * predict_here(calibration(), config)
    found = with_handover_cost(calibration(), config, slower)
    assert predict_here(found, config) == pytest.approx(slower, rel=0.01)
    assert with_handover_cost(calibration(), config, 10 * slower).handover_seconds < 1e-5
