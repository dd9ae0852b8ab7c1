"""MAPPO on hide-and-seek: one policy for hiders and seekers, LSTM, attention over what they see.

Run: python experiments/mappo_hide_and_seek.py                (the quadrant game, 1 against 1: a workstation)
     python experiments/mappo_hide_and_seek.py --full-scale   (the published configuration, which wants thousands of cores)
"""

import dataclasses
import sys

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from agents.transforms.normalization import NormalisationConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent

# Which phase a run is in: seekers chase (seen_fraction rises), hiders build (boxes move and are locked in the preparation phase,
# seen_fraction falls), seekers use ramps (ramps move after it), hiders take the ramps first (they move or are locked in it).
PHASES = (
    "hider_return",
    "seeker_return",
    "seen_fraction",
    "max_box_move_prep",
    "max_box_move",
    "num_box_lock_prep",
    "num_box_lock",
    "max_ramp_move_prep",
    "max_ramp_move",
    "num_ramp_lock_prep",
    "num_ramp_lock",
    "discard_episode",
)
_PUBLISHED = PPOConfig(
    learning_rate=3e-4,
    discount=0.998,
    gae_lambda=0.95,
    clip_epsilon=0.2,
    entropy_coef=0.01,
    max_grad_norm=5.0,
    num_epochs=4,  # SRL takes a step on each batch, and every batch four times
    num_minibatches=1,
    value_normalisation="moments",  # what SRL calls PopArt never rescales its last layer
    chunk_length=10,
    normalisation=NormalisationConfig(observations=True, clip_observation=5.0),
)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run. A policy for each team: --policies.mapping '{"hider_*": "hiders", "*": "seekers"}'."""

    env: EnvConfig = EnvConfig(
        "base", "hide_and_seek", '{"hiders": 1, "seekers": 1, "global_state": true}', info_fields=PHASES
    )
    policies: PoliciesConfig = PoliciesConfig()
    network: NetworkConfig = NetworkConfig(
        "entities", hidden_sizes=(64, 64), activation="relu", core="lstm", core_size=64, circular=("lidar",)
    )
    agent: PPOConfig = dataclasses.replace(_PUBLISHED, num_minibatches=4)
    run: RunConfig = RunConfig(num_envs=64, rollout_length=80, env_steps=4_000_000, evaluation_episodes=20)


@dataclasses.dataclass(frozen=True)
class FullScale(Experiment):
    """The published sizes: 2 against 2 on random walls; 640,000 agent steps an update (64,000 chunks of 10), for days."""

    env: EnvConfig = EnvConfig("randomwalls", "hide_and_seek", '{"global_state": true}', info_fields=PHASES)
    network: NetworkConfig = NetworkConfig(
        "entities", hidden_sizes=(128, 256), activation="relu", core="lstm", core_size=256, circular=("lidar",)
    )
    agent: PPOConfig = _PUBLISHED
    run: RunConfig = RunConfig(
        num_envs=1000,
        num_env_workers=50,
        rollout_length=160,
        env_steps=20_000_000_000,
        checkpoint_every_updates=1000,
        log_every_seconds=30.0,
        evaluation_episodes=20,
    )


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_multi_policy_agent(spec, experiment.policies, lambda own: make_ppo(config, own, experiment.network))
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--full-scale"]
    launch(main, FullScale if len(arguments) < len(sys.argv) - 1 else Experiment, __doc__, arguments)
