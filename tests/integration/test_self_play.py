"""Slots hold the library members that they name, to the bit, after every update of a run; runs of all plans are alike."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsrl.cli.main
from agents.networks.config import NetworkConfig
from agents.reinforce import REINFORCEConfig
from agents.transforms.self_play import SelfPlayConfig
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from jaxsrl.evaluation.load_agent import load_agent
from jaxsrl.experiment import Experiment
from jaxsrl.population.imitation import ImitationConfig
from jaxsrl.population.policies import PoliciesConfig, load_policy_params
from tests.support.learner_processes import ends, start_two
from tests.support.run_configs import run_config
from tests.support.slot_watch import SlotWatch, trees_equal

ROWS, STEPS, UPDATES = 32, 8, 8
POOL = SelfPlayConfig(slots=2, library_size=3, self_share=0.25, snapshot_every=2, reslot_every=3)


def experiment(directory, updates=UPDATES, self_play=POOL, **changes):
    settings = {"num_envs": ROWS, "rollout_length": STEPS, "max_policy_lag": 0, "eval_final_episodes": 0}
    settings |= {"total_env_steps": ROWS * STEPS * updates, "checkpoint_interval_updates": 1, "plan": "serial"}
    return Experiment(
        env=EnvConfig("RockPaperScissors-v1", "jax", '{"rounds": 3}'),
        agent=REINFORCEConfig(discount=0.0),
        network=NetworkConfig(hidden_sizes=(4,)),
        policies=PoliciesConfig(self_play=self_play),
        run=run_config(name="run", directory=str(directory), **{**settings, **changes}),
    )


def watched(directory, **changes):
    """Trains, and compares the slots of every version; returns the report and the members of the slots by version."""
    made, watch = experiment(directory, **changes), SlotWatch(POOL.snapshot_every)
    agent, _, _ = made.build()
    structure = jax.tree.structure(jax.eval_shape(agent.init, jax.random.key(0)).params)
    with watch.receives(structure):
        report = made.train(quiet=True, callbacks=[watch])
    watch.check_changes(UPDATES)
    assert (watch.received > UPDATES) == (made.run.plan != "device_only")
    return report, watch.members


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Report and members of the reference."""
    return watched(tmp_path_factory.mktemp("serial"))


def test_slots_hold_their_members_in_the_serial_plan(serial):
    library = serial[0].state.extra["library"]
    assert sorted(library.member.tolist()) == [2, 3, 4]
    assert float(library.games.sum()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"plan": "single_learner_fine", "pool_num_workers": 2},
        {"plan": "single_learner_coarse", "pool_num_workers": 2},
        {"plan": "multiple_learners", "learner_num_devices": 2, "pool_num_workers": 2},
        {"plan": "decoupled", "pool_num_workers": 2, "inference_num_devices": 2, "inference_num_servers": 2},
        {"plan": "decoupled", "pool_num_workers": 2, "learner_num_devices": 2},
        {"plan": "dedicated_environments", "pool_num_workers": 1},
        {"plan": "device_only"},
        {"plan": "device_only", "learner_num_devices": 2},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_slots_hold_their_members_in_every_plan(tmp_path, serial, changes):
    other, members = watched(tmp_path, **changes)
    assert members == serial[1]
    ours, theirs = jax.device_get((serial[0].state, other.state))
    for a, b in zip(jax.tree.leaves(ours.extra["library"]), jax.tree.leaves(theirs.extra["library"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert trees_equal(ours.extra["games"], theirs.extra["games"])


@pytest.mark.slow
@pytest.mark.parametrize("plan_name", ["single_learner_fine", "multiple_learners"])
def test_slots_hold_their_members_in_every_process(tmp_path, serial, plan_name):
    program, devices = "tests/integration/self_play_learner.py", ("--learner.num-devices", "2")
    flags = ("--plan", plan_name, "--pool.num-workers", "2", *devices, "--run.directory", str(tmp_path))
    ended = ends(start_two(program, *flags))
    assert [status for status, _, _ in ended] == [0, 0], ended
    expected = {str(version): members for version, members in serial[1].items()}
    assert [json.loads(said.strip().splitlines()[-1]) for _, said, _ in ended] == [expected] * 2


def test_self_play_of_imitated_rewards_is_rejected(tmp_path):
    imitation = ImitationConfig(demonstrations=str(tmp_path))
    with pytest.raises(UserError, match=r"rewards of one policy: expected --policies.self-play.slots 0 with it, got 2"):
        dataclasses.replace(experiment(tmp_path), imitation=imitation).build()


@pytest.mark.parametrize("plan_name", ["central", "distributed_replay"])
def test_plans_without_a_pool_reject_self_play(tmp_path, plan_name):
    with pytest.raises(UserError, match=plan_name):
        experiment(tmp_path, plan=plan_name).train(quiet=True)
    assert not list(tmp_path.iterdir())


def test_members_come_from_other_runs(tmp_path):
    paths = []
    for seed in (1, 2):
        first = experiment(tmp_path / str(seed), 1, seed=seed).train(quiet=True)
        paths.append(str(first.directory))
    pool = dataclasses.replace(POOL, members=tuple(paths), snapshot_every=0, opponents="uniform")
    second = experiment(tmp_path, 2, self_play=pool)
    report = second.train(quiet=True)
    agent = load_agent(report.directory).agent
    for number, path in enumerate(paths):
        expected = load_policy_params(agent, "", Path(path))
        member = jax.tree.map(lambda leaf, number=number: leaf[number], report.state.extra["library"].params)
        assert trees_equal(member, expected)
    lost = dataclasses.replace(pool, members=(*paths, str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match=r"self_play.members\[2\]"):
        experiment(tmp_path / "lost", self_play=lost).build()


@pytest.mark.parametrize(
    "source", [pytest.param(SelfPlayConfig(), marks=pytest.mark.slow), POOL], ids=["plain", "pool"]
)
def test_a_warm_start_keeps_the_named_members(tmp_path, source):
    members = [str(experiment(tmp_path / str(seed), 1, seed=seed).train(quiet=True).directory) for seed in (1, 2)]
    begun = experiment(tmp_path / "source", 2, self_play=source).train(quiet=True)
    pool = dataclasses.replace(POOL, members=tuple(members), snapshot_every=0)
    second = experiment(tmp_path, 1, self_play=pool, init_from=str(begun.directory))
    second = dataclasses.replace(second, agent=REINFORCEConfig(discount=0.0, learning_rate=1e-30))
    params = jax.device_get(second.train(quiet=True).state.params)
    learner = begun.state.params["learner"] if source.slots else begun.state.params
    assert trees_equal(params["learner"], jax.device_get(learner))
    agent = load_agent(tmp_path / "run").agent
    for slot, member in enumerate(params["members"].tolist()):
        expected = load_policy_params(agent, "", Path(members[member]))
        assert trees_equal(jax.tree.map(lambda leaf, slot=slot: leaf[slot], params["slots"]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"plan": "device_only"}], ids=["serial", "device_only"])
def test_a_resumed_run_is_exact(tmp_path, changes):
    whole = experiment(tmp_path / "whole", 7, **changes).train(quiet=True)
    for updates in (3, 7):
        parts = experiment(tmp_path / "parts", updates, **changes).train(quiet=True)
    assert trees_equal(whole.state, parts.state)


@pytest.mark.slow
def test_the_learner_of_a_run_is_evaluated_and_loaded(tmp_path, capsys):
    report = experiment(tmp_path, 4).train(quiet=True)
    loaded = load_agent(tmp_path / "run")
    learner = jax.device_get(report.state.params["learner"])
    assert trees_equal(loaded.params, learner)
    assert loaded.agent.name == "reinforce"
    assert "opponent" not in loaded.agent.extras
    assert trees_equal(load_policy_params(loaded.agent, "any", tmp_path / "run"), learner)
    jaxsrl.cli.main.main(["evaluate", str(tmp_path / "run"), "--episodes", "4", "--stochastic", "--json"])
    assert sorted(json.loads(capsys.readouterr().out)["agent_returns"]) == ["player_0", "player_1"]


@pytest.mark.slow
def test_simple_tag_is_played_against_past_selves(tmp_path, capsys):
    """Three hunters and a prey, who observe less: every slot plays both teams, and the learner is evaluated and rated."""
    pytest.importorskip("mpe2")
    length, pool, watch = 32, dataclasses.replace(POOL, self_share=0.5), SlotWatch(POOL.snapshot_every)
    sizes = {"rollout_length": length, "total_env_steps": ROWS * length * UPDATES, "pool_num_workers": 2}
    made = experiment(tmp_path, self_play=pool, plan="single_learner_fine", **sizes)
    made = dataclasses.replace(made, env=EnvConfig("simple_tag_v3", "mpe"))
    with watch.receives(structure=None):
        report = made.train(quiet=True, callbacks=[watch])
    watch.check_changes(UPDATES)
    library = report.state.extra["library"]
    assert 0 < float(library.games.sum()) <= 4 * UPDATES * length / 25  # slots play in half of the 8 environments
    jaxsrl.cli.main.main(["evaluate", str(tmp_path / "run"), "--episodes", "4", "--json"])
    hunters = [f"adversary_{number}" for number in range(3)]
    assert sorted(json.loads(capsys.readouterr().out)["agent_returns"]) == [*hunters, "agent_0"]
    jaxsrl.cli.main.main(["arena", str(tmp_path / "run"), "random", "--games", "4", "--json"])
    assert len(json.loads(capsys.readouterr().out)["names"]) == 2


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        (
            PoliciesConfig('{"player_0": "one", "*": "two"}', agents='{"two": {"algorithm": "dqn"}}', self_play=POOL),
            "trajectories, such as ppo: got reinforce.dqn, which learns from replay",
        ),
        (PoliciesConfig(self_play=SelfPlayConfig(slots=9)), "expected 18 environments without self-play, got 8 of 16"),
    ],
)
def test_what_does_not_fit_is_rejected_before_training(tmp_path, policies, says):
    made = experiment(tmp_path)
    with pytest.raises(UserError, match=says):
        Experiment(env=made.env, agent=made.agent, policies=policies, run=made.run).build()


TEAMS = PoliciesConfig('{"player_0": "one", "player_1": "two"}', self_play=POOL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"plan": "single_learner_fine", "pool_num_workers": 2},
        {"plan": "multiple_learners", "learner_num_devices": 2, "pool_num_workers": 2},
    ],
    ids=lambda changes: changes["plan"],
)
def test_a_policy_for_each_team_plays_past_selves(tmp_path, changes):
    """Slots hold members of both policies, a resumed run is exact, and another plan has the same members and games."""
    made = dataclasses.replace(experiment(tmp_path / "whole"), policies=TEAMS)
    watch = SlotWatch(POOL.snapshot_every)
    agent, _, _ = made.build()
    params = jax.eval_shape(agent.init, jax.random.key(0)).params
    assert sorted(params["slots"]) == sorted(params["learner"]) == ["one", "two"]
    with watch.receives(jax.tree.structure(params)):
        whole = made.train(quiet=True, callbacks=[watch])
    watch.check_changes(UPDATES)
    for updates in (3, UPDATES):
        part = dataclasses.replace(experiment(tmp_path / "parts", updates), policies=TEAMS).train(quiet=True)
    assert trees_equal(whole.state, part.state)
    other = dataclasses.replace(experiment(tmp_path / "other", **changes), policies=TEAMS).train(quiet=True)
    assert trees_equal(whole.state.extra["games"], other.state.extra["games"])
    for a, b in zip(jax.tree.leaves(whole.state.params), jax.tree.leaves(other.state.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_runs_with_a_policy_for_each_team_meet(tmp_path, capsys):
    """They are members of a later run and contestants of an arena, to the bit those that were trained."""
    paths = []
    for seed in (1, 2):
        first = dataclasses.replace(experiment(tmp_path / str(seed), 2, seed=seed), policies=TEAMS).train(quiet=True)
        paths.append(str(first.directory))
        learner = jax.device_get(first.state.params["learner"])
        assert trees_equal(load_agent(first.directory).params, learner)
    pool = dataclasses.replace(POOL, members=tuple(paths), snapshot_every=0, opponents="uniform")
    policies = dataclasses.replace(TEAMS, self_play=pool)
    report = dataclasses.replace(experiment(tmp_path, 1), policies=policies).train(quiet=True)
    second = jax.tree.map(lambda leaf: leaf[1], report.state.extra["library"].params)
    assert trees_equal(second, learner)
    changed = dataclasses.replace(policies, mapping='{"player_0": "one", "player_1": "three"}')
    other = dataclasses.replace(experiment(tmp_path, 1), policies=changed)
    with pytest.raises(UserError, match=r"members\[0\].* has policies one, two: expected policies one, three"):
        other.build()
    jaxsrl.cli.main.main(["arena", *paths, "random", "--games", "8", "--json"])
    assert len(json.loads(capsys.readouterr().out)["names"]) == 3
