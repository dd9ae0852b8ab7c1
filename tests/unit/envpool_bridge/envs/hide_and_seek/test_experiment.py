"""The experiment's numbers, and that both of its sizes compose."""

import pytest

pytest.importorskip("mujoco")

from experiments.mappo_hide_and_seek import PHASES, Experiment, FullScale, main
from jaxsrl.experiment import TrainingSkippedError, skip_training


def composed(experiment):
    with skip_training(), pytest.raises(TrainingSkippedError) as caught:
        main(experiment)
    return caught.value.composed


def test_the_full_scale_learns_from_64_000_chunks_of_10_agent_steps():
    experiment = FullScale()
    found = composed(experiment)
    assert found.spec.rows_per_env == 4
    assert found.config.env_steps_per_update * found.spec.rows_per_env == 64_000 * 10
    agent, network = experiment.agent, experiment.network
    assert (agent.discount, agent.gae_lambda, agent.clip_epsilon, agent.entropy_coef) == (0.998, 0.95, 0.2, 0.01)
    assert (agent.learning_rate, agent.adam_epsilon, agent.max_grad_norm, agent.value_coef) == (3e-4, 1e-5, 5.0, 0.5)
    assert (agent.num_gradient_steps, agent.chunk_length, agent.value_clip_epsilon) == (4, 10, None)
    assert (network.torso, network.entity_heads, network.hidden_sizes) == ("entities", 4, (128, 256))
    assert (network.core, network.core_size, network.shares_torso) == ("lstm", 256, False)


def test_the_small_one_is_the_quadrant_game_for_two_whose_infos_tell_the_phase():
    found = composed(Experiment())
    assert [agent.name for agent in found.spec.agents] == ["hider_0", "seeker_0"]
    assert found.spec.critic_only == ("state",)
    env = found.source.make_env()
    env.reset(seed=0)
    while env.agents:
        *_, infos = env.step({name: env.action_space(name).sample() for name in env.agents})
    assert set(infos["hider_0"]) == set(PHASES)
