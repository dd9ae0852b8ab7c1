"""The experiment's numbers, and that both of its sizes compose."""

import dataclasses

import pytest

pytest.importorskip("mujoco")

from agents.transforms.self_play import SelfPlayConfig
from envpool_bridge.envs.hide_and_seek.spaces import Teams
from envpool_bridge.envs.multi_agent_env import ParallelSource
from envpool_bridge.envs.suites.hide_and_seek import PHASE_FIELDS
from experiments import mappo_hide_and_seek, mappo_hide_and_seek_1v1, mappo_hide_and_seek_full_scale
from jaxsrl.planner.plan_experiment import plan_experiment
from jaxsrl.population.policies import PoliciesConfig


def test_full_scale_learns_from_64_000_chunks_of_10_agent_steps():
    pytest.importorskip("numba")
    experiment = mappo_hide_and_seek_full_scale.EXPERIMENT
    _, _, spec = experiment.build()
    assert spec.rows_per_env == 4
    assert experiment.run.env_steps_per_update == 64_000 * 10
    assert plan_experiment(experiment, cores=60).plan.environments.replicas == 1
    agent, network = experiment.agent, experiment.network
    assert (agent.discount, agent.gae_lambda, agent.clip_epsilon, agent.entropy_coef) == (0.998, 0.95, 0.2, 0.01)
    assert (agent.learning_rate, agent.value_coef) == (3e-4, 0.5)
    assert (agent.optimizer.epsilon, agent.optimizer.max_grad_norm) == (1e-5, 5.0)
    assert (agent.num_gradient_steps, agent.chunk_length, agent.value_clip_epsilon) == (4, 10, None)
    assert (network.torso, network.entity_heads, network.hidden_sizes) == ("entities", 4, (128, 256))
    assert (network.core, network.core_size, network.shares_torso) == ("lstm", 256, False)


def test_small_one_is_quadrant_game_whose_infos_show_the_phase():
    _, source, spec = mappo_hide_and_seek.EXPERIMENT.build()
    assert isinstance(source, ParallelSource)
    assert [agent.name for agent in spec.agents] == ["hider_0", "seeker_0"]
    assert spec.critic_only == ("state",)
    env = source.make_env()
    env.reset(seed=0)
    infos = {}
    while env.agents:
        *_, infos = env.step({name: env.action_space(name).sample() for name in env.agents})
    assert set(infos["hider_0"]) == set(PHASE_FIELDS)


def test_1v1_has_the_published_sizes_on_the_planar_engine():
    pytest.importorskip("numba")
    experiment = mappo_hide_and_seek_1v1.EXPERIMENT
    by_team = PoliciesConfig(
        mapping={"hider_*": "hiders", "*": "seekers"}, self_play=SelfPlayConfig(slots=1, self_share=0.9)
    )
    for policies in (by_team, dataclasses.replace(by_team, mapping={}), PoliciesConfig()):
        _, source, spec = dataclasses.replace(experiment, policies=policies).build()
    assert isinstance(source, ParallelSource)
    env = source.make_env()
    assert isinstance(env, Teams)
    game = env.game
    assert (game.horizon, game.boxes, game.ramps, game.hiders, game.seekers) == (60, (1, 1), 1, 1, 1)
    assert spec.rows_per_env == 2
    assert (experiment.run.num_envs, experiment.run.rollout_length) == (600, 60)
    assert set(spec.info_fields) == set(PHASE_FIELDS)
