"""Of every plan: after the first update that learns, and once inference serves, nothing compiles any more."""

import pytest

from agents.api import AnyAgent, ReplayConfig
from agents.dqn import DQNConfig, make_dqn
from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.spec.specs import EnvSpec
from jaxsrl.envs.registry import make_env
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from jaxsrl.training.train import TrainingLoop
from tests.support.compilations import compilations
from tests.support.run_configs import run_config

UPDATES = 7
MIN_SIZE = 256  # of replay: two rollouts


def ppo(spec: EnvSpec, network: NetworkConfig | None = None) -> AnyAgent:
    return make_ppo(PPOConfig(num_epochs=2, num_minibatches=1), spec, network or NetworkConfig(hidden_sizes=(8,)))


def gru(spec: EnvSpec) -> AnyAgent:
    return ppo(spec, NetworkConfig(hidden_sizes=(8,), core="gru", core_size=8))


def dqn(spec: EnvSpec) -> AnyAgent:
    replay = ReplayConfig(capacity=1024, min_size=MIN_SIZE, batch_size=32)
    return make_dqn(DQNConfig(replay=replay, total_updates=UPDATES), spec, NetworkConfig(hidden_sizes=(8,)))


SERVERS = {"inference_num_devices": 2, "inference_num_servers": 2}
CASES = [
    *(pytest.param(plan_name, ppo, {}, marks=pytest.mark.slow) for plan_name in ("serial", "single_learner_coarse")),
    ("single_learner_fine", ppo, {"inference_batching": "merged", "pool_lanes_per_worker": 2, "max_policy_lag": 2}),
    pytest.param("single_learner_fine", gru, {}, marks=pytest.mark.slow),
    ("decoupled", ppo, {**SERVERS, "inference_batching": "merged", "pool_lanes_per_worker": 2}),
    pytest.param("decoupled", gru, SERVERS, marks=pytest.mark.slow),
    pytest.param("multiple_learners", ppo, {"learner_num_devices": 2}, marks=pytest.mark.slow),
    pytest.param("central", ppo, {"learner_num_devices": 2}, marks=pytest.mark.slow),
    ("central", ppo, {"learner_num_devices": 2, "learner_gradients": "asynchronous", "max_policy_lag": 2}),
    ("device_only", ppo, {}),
    pytest.param("dedicated_environments", ppo, {"pool_num_workers": 1}, marks=pytest.mark.slow),
    ("distributed_replay", dqn, {"learner_num_devices": 2}),
    pytest.param("single_learner_fine", dqn, {"replay_memory": "device"}, marks=pytest.mark.slow),
    pytest.param("single_learner_fine", dqn, {"replay_memory": "host"}, marks=pytest.mark.slow),
]


def test_cases_include_every_plan():
    with_environments = set(PLANS) - {"offline"}  # Its test is in test_offline.py.
    assert {getattr(plan, "values", plan)[0] for plan in CASES} == with_environments


@pytest.mark.parametrize(
    ("plan_name", "make_agent", "changes"), CASES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_no_compilation_after_the_first_update(tmp_path, monkeypatch, plan_name, make_agent, changes):
    source = make_env(EnvConfig("CartPole-v1", suite="jax" if plan_name == "device_only" else "gymnasium"))
    spec = source.spec()
    settings = {"pool_num_workers": 2, "checkpoint_interval_updates": 2, "metrics_interval_seconds": 0.0, **changes}
    config = run_config(
        name="run",
        directory=str(tmp_path),
        plan=plan_name,
        num_envs=16,
        rollout_length=8,
        total_env_steps=UPDATES * 128,
        **settings,
    )
    plan = PLANS[plan_name](config, Resources.detect())
    agent = make_agent(spec)
    learning = MIN_SIZE // 128 + 1 if make_agent is dqn else 1  # number of the first update that takes a gradient step
    compiled_by_update: dict[int, int] = {}
    original = TrainingLoop.after_update
    with compilations() as programs:

        def after_update(self, learner):
            original(self, learner)
            compiled_by_update[learner.num_updates] = len(programs)

        monkeypatch.setattr(TrainingLoop, "after_update", after_update)
        report = run(plan, agent, source, config, spec=spec, quiet=True)
    assert report.num_updates == UPDATES
    first = min(update for update in compiled_by_update if update >= learning)
    assert first < UPDATES
    assert programs[compiled_by_update[first] :] == []
    assert [each for each in programs if each[0].startswith("inference")] == []
