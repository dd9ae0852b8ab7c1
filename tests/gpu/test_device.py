"""What only an accelerator can show; run by make gpu."""

import chex
import jax
import numpy as np
import pytest

from agents.networks.config import NetworkConfig
from agents.ops.schedules import ScheduleConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.shm.layout import PoolShape, make_layout
from envpool_bridge.shm.slots import view_slots
from jaxsrl.envs.registry import make_env
from jaxsrl.evaluation.evaluate import evaluate
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from tests.support.run_configs import run_config

pytestmark = pytest.mark.gpu
SOURCE = EnvConfig("CartPole-v1").source()


def random_slot():
    spec = SOURCE.spec()
    agent = make_ppo(PPOConfig(), spec, NetworkConfig())
    layout = make_layout(spec, PoolShape(1, 1, 1, 64, 32, 1), agent.extras)
    slot = view_slots(layout, memoryview(bytearray(layout.total_bytes)))[0]
    rng = np.random.default_rng(0)
    slot.observation[...] = rng.normal(size=slot.observation.shape)
    slot.action[...] = rng.integers(0, 2, slot.action.shape)
    slot.reward[...], slot.valid[...] = 1.0, True
    slot.extras["behavior_log_prob"][...] = np.log(0.5)
    return agent, slot


def test_the_update_on_the_device_is_that_of_the_cpu():
    agent, slot = random_slot()
    states = []
    for devices in (jax.local_devices(backend="cpu")[:1], jax.local_devices()[:1]):
        mesh = LearnerMesh(devices)
        with jax.default_device(devices[0]), jax.default_matmul_precision("highest"):
            state = mesh.place_state(agent.init(jax.random.key(0)))
            update = mesh.jit_update(agent, jax.random.key(1))
            states.append(jax.device_get(update(state, mesh.place_batch([slot]))[0].params))
    chex.assert_trees_all_close(*states, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs several devices")
def test_the_update_sharded_over_all_devices_is_that_of_one():
    agent, slot = random_slot()
    count = max(number for number in (2, 4, 8) if number <= jax.local_device_count())
    states = []
    for devices in (jax.local_devices()[:1], jax.local_devices()[:count]):
        mesh = LearnerMesh(devices)
        with jax.default_matmul_precision("highest"):
            state = mesh.place_state(agent.init(jax.random.key(0)))
            update = mesh.jit_update(agent, jax.random.key(1))
            states.append(jax.device_get(update(state, mesh.place_batch([slot]))[0].params))
    chex.assert_trees_all_close(*states, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(jax.default_backend() == "cpu", reason="not run: batches are the host's own memory on the CPU")
def test_a_batch_on_the_device_is_a_copy_of_the_slot():
    _, slot = random_slot()
    mesh = LearnerMesh(jax.local_devices()[:1])
    assert not mesh.aliases_host
    batch = jax.block_until_ready(mesh.place_batch([slot]))
    before = np.asarray(batch.observation).copy()
    slot.observation[...] = np.nan
    np.testing.assert_array_equal(batch.observation, before)


@pytest.mark.seconds(60)
def test_cartpole_learns_on_the_device(tmp_path, size):
    spec = SOURCE.spec()
    config = run_config(directory=str(tmp_path), total_env_steps=size(600_000, 10_000), checkpoint_interval_updates=0)
    schedule = ScheduleConfig("linear")
    settings = PPOConfig(1e-3, learning_rate_schedule=schedule, total_updates=config.num_updates, entropy_coef=0.005)
    agent = make_ppo(settings, spec, NetworkConfig())
    plan = PLANS[config.plan](config, Resources.detect())
    report = run(plan, agent, SOURCE, config, spec=spec, quiet=True)
    assert evaluate(agent, report.state.params, SOURCE, episodes=20).mean_return >= size(475.0, 0.0)


ON_ONE_DEVICE = [
    ("serial", {}),
    ("serial", {"inference_platform": "cpu"}),
    ("single_learner_fine", {"inference_platform": "cpu"}),
    ("single_learner_coarse", {}),
    ("decoupled", {"inference_platform": "cpu", "inference_num_servers": 2}),
    ("multiple_learners", {}),
    ("central", {"learner_num_replicas": 2}),
    ("central", {"learner_num_replicas": 2, "learner_gradients": "asynchronous"}),
    ("device_only", {}),
]


@pytest.mark.seconds(10)
@pytest.mark.parametrize(("policy", "changes"), ON_ONE_DEVICE, ids=str)
def test_plans_learn_with_device_and_host_inference(tmp_path, policy, changes):
    source = make_env(EnvConfig("CartPole-v1", suite="jax" if policy == "device_only" else "gymnasium"))
    spec = source.spec()
    config = run_config(
        name="run", directory=str(tmp_path), plan=policy, total_env_steps=20 * 128 * 32, max_policy_lag=0, **changes
    )
    agent = make_ppo(PPOConfig(num_epochs=1), spec, NetworkConfig())
    report = run(PLANS[policy](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)
    assert report.num_updates == 20
    chex.assert_tree_all_finite(jax.device_get(report.state.params))
    acting = jax.tree.leaves(report.state.params)[0].devices()
    assert {device.platform for device in acting} == {jax.default_backend()}
