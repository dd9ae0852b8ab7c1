"""A run whose learning comes to NaN: nothing of it reaches the actors; it stops, or goes back to what was good."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError
from envpool_bridge.options import SupervisorOptions
from jaxsrl.envs.registry import make_env
from jaxsrl.learner.finite_watch import NotFiniteError
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

UPDATES = 12


def spoilt(agent, begin, end):
    """The agent, whose updates from `begin` to before `end` come to NaN."""

    def update(state, batch, key):
        bad = (state.num_updates >= begin) & (state.num_updates < end)
        learnt, metrics = agent.update(state, batch, key)
        params = jax.tree.map(lambda leaf: jnp.where(bad, jnp.nan, leaf), learnt.params)
        return dataclasses.replace(learnt, params=params), metrics

    return agent._replace(update=update, gradient_steps=None)


def train(directory, begin, end, policy="serial", suite="gymnasium", **changes):
    config = run_config(
        name="run",
        directory=str(directory),
        plan=policy,
        num_envs=8,
        rollout_length=4,
        total_env_steps=8 * 4 * UPDATES,
        max_policy_lag=0,
        checkpoint_interval_updates=2,
        learner_max_nonfinite_updates=3,
        **changes,
    )
    source = make_env(EnvConfig("CartPole-v1", suite=suite))
    spec = source.spec()
    agent = make_ppo(PPOConfig(num_epochs=1, num_minibatches=1), spec, NetworkConfig(hidden_sizes=(8,)))
    plan = PLANS[policy](config, Resources.detect())
    return run(plan, spoilt(agent, begin, end), source, config, spec=spec, quiet=True)


def test_nonfinite_update_is_skipped_and_run_continues(tmp_path):
    report = train(tmp_path, 5, 6)
    assert report.num_updates == UPDATES
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(report.state.params)))
    assert '"learner/nonfinite_updates_total": 1.0' in (report.directory / "metrics.jsonl").read_text().splitlines()[-1]


def test_too_many_in_a_row_stop_the_run_with_the_batch_at_hand(tmp_path):
    with pytest.raises(
        NotFiniteError, match="3 consecutive updates produced NaN or infinity and were skipped .last: 8"
    ):
        train(tmp_path, 5, UPDATES)
    with np.load(tmp_path / "run" / "not_finite_batch.npz") as batch:
        assert batch["reward"].shape == (4, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"learner_gradients": "asynchronous", "learner_on_nonfinite": "roll_back"},
            "asynchronous replicas cannot be rolled back",
        ),
        (
            {"pool_supervision": SupervisorOptions(bad_env_output="drop_episode")},
            "plan serial: pool.supervision.bad_env_output drop_episode is for environments in workers",
        ),
    ],
)
def test_what_a_plan_cannot_do_about_failures_is_rejected(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        train(tmp_path, 5, 6, **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_rollback_continues_from_newest_good_checkpoint(tmp_path):
    report = train(tmp_path, 5, 8, learner_on_nonfinite="roll_back")
    assert report.num_updates == UPDATES
    assert "resumes from what the checkpoint of update 4 had learned" in (report.directory / "log.txt").read_text()


@pytest.mark.slow
def test_device_loop_skips_nonfinite_updates(tmp_path):
    report = train(tmp_path, 5, 6, "device_only", "jax")
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(report.state.params)))
