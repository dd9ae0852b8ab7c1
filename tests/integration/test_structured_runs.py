"""Nested observations, hybrid actions, masks and stacked frames through whole runs, resumed or not, placed any way."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}


class Hybrid(gymnasium.Env):
    """Sees a picture, a place and a pair of dice; aims and presses keys. Random, and its own seed decides everything."""

    observation_space = spaces.Dict(
        {
            "dice": spaces.MultiDiscrete([6, 6], start=[1, 1]),
            "picture": spaces.Box(0, 255, (3, 3), np.uint8),
            "where": spaces.Tuple((spaces.Discrete(4, start=-1), spaces.Box(-1.0, 1.0, (2,), np.float64))),
        }
    )
    action_space = spaces.Dict(
        {"aim": spaces.Box(-1.0, 1.0, (2,)), "keys": spaces.MultiBinary(2), "move": spaces.Discrete(3)}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 12))
        return self.seen(), {}

    def seen(self):
        random = self.np_random
        return {
            "dice": random.integers(1, 7, 2),
            "picture": random.integers(0, 256, (3, 3)).astype(np.uint8),
            "where": (random.integers(-1, 3), random.uniform(-1, 1, 2)),
        }

    def step(self, action):
        assert self.action_space.contains(action), action
        self.left -= 1
        reward = float(action["aim"].sum() + action["keys"].sum() - action["move"])
        return self.seen(), reward, self.left == 0, False, {"moved": int(action["move"])}


class Choosing(gymnasium.Env):
    """Only one action is legal at each step: taking another is an error."""

    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(4), "observation": spaces.Box(0.0, 1.0, (4,))})
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.seen(), {}

    def seen(self):
        self.legal = int(self.np_random.integers(4))
        mask = np.zeros(4, np.int8)
        mask[self.legal] = 1
        return {"action_mask": mask, "observation": np.full(4, 0.5, np.float32)}

    def step(self, action):
        if action != self.legal:
            raise ValueError(f"illegal action {action}, expected {self.legal}")
        self.steps += 1
        return self.seen(), 1.0, self.steps == 7, False, {}


SOURCES = {
    "hybrid": GymnasiumSource(Hybrid, frame_stack=3, info_fields=("moved",)),
    "masked": GymnasiumSource(Choosing),
}


def train(directory, kind, policy, updates=6, **changes):
    settings = {"name": "run", "directory": str(directory), "plan": policy, "num_envs": 8, "pool_num_workers": 2}
    settings |= {
        "pool_lanes_per_worker": 1,
        "rollout_length": 8,
        "total_env_steps": 8 * 8 * updates,
        "checkpoint_interval_updates": 0,
    }
    config = run_config(**{**settings, "max_policy_lag": 0, **changes})
    source = SOURCES[kind]
    spec = source.spec()
    ppo = PPOConfig(learning_rate=1e-3, num_epochs=2, num_minibatches=2)
    agent = make_ppo(ppo, spec, NetworkConfig(hidden_sizes=(8,)))
    report = run(PLANS[policy](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)
    return agent, report


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    return {kind: train(tmp_path_factory.mktemp(kind), kind, "serial")[1] for kind in SOURCES}


CASES = [
    ("hybrid", "single_learner_fine"),
    pytest.param("hybrid", "single_learner_coarse", marks=pytest.mark.slow),
    pytest.param("masked", "single_learner_fine", marks=pytest.mark.slow),
    pytest.param("hybrid", "central", marks=pytest.mark.slow),
    pytest.param("hybrid", "multiple_learners", marks=pytest.mark.slow),
    pytest.param("masked", "single_learner_coarse", marks=pytest.mark.slow),
    pytest.param("masked", "multiple_learners", marks=pytest.mark.slow),
    pytest.param("masked", "central", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "policy"), CASES)
def test_structured_environments_learn_the_same_in_every_plan(tmp_path, serial, kind, policy):
    _, report = train(tmp_path, kind, policy)
    for one, other in zip(
        jax.tree.leaves(report.state.params), jax.tree.leaves(serial[kind].state.params), strict=True
    ):
        np.testing.assert_allclose(one, other, **TOLERANCE)
    assert report.metrics == pytest.approx(serial[kind].metrics)
    assert ("episode/info/moved_mean" in report.metrics) == (kind == "hybrid")


RESUMES = [
    ("hybrid", "single_learner_fine", 1),
    ("hybrid", "serial", 0),
    ("masked", "single_learner_fine", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "policy", "lag"), RESUMES)
def test_structured_run_resumes_bit_for_bit(tmp_path, kind, policy, lag):
    _, whole = train(tmp_path / "whole", kind, policy, max_policy_lag=lag)
    train(tmp_path / "cut", kind, policy, updates=4, max_policy_lag=lag)
    _, resumed = train(tmp_path / "cut", kind, policy, max_policy_lag=lag)
    for one, other in zip(jax.tree.leaves(whole.state), jax.tree.leaves(resumed.state), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert resumed.metrics == whole.metrics


@pytest.mark.slow
def test_a_merged_inference_batch_gathers_every_leaf(tmp_path, serial):
    _, report = train(tmp_path, "hybrid", "single_learner_fine", inference_batching="merged", pool_lanes_per_worker=2)
    for one, other in zip(
        jax.tree.leaves(report.state.params), jax.tree.leaves(serial["hybrid"].state.params), strict=True
    ):
        np.testing.assert_allclose(one, other, **TOLERANCE)


def test_structured_run_is_evaluated_with_stacked_frames(tmp_path):
    agent, report = train(tmp_path, "hybrid", "serial")
    once, again = (evaluate(agent, report.state.params, SOURCES["hybrid"], episodes=5, seed=3) for _ in range(2))
    assert once == again
    assert len(once.returns) == 5
