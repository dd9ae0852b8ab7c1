"""MAPPO on the quadrant game of hide-and-seek, 1 against 1, for a workstation (Baker et al. 2020)."""

from agents.ops.optimizers import OptimizerConfig
from agents.ppo import PPOConfig
from agents.transforms.normalization import NormalizationConfig
from envpool_bridge.envs.suites.hide_and_seek import PHASE_FIELDS
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

# A policy for each team: '--policies.mapping.hider_*' hiders '--policies.mapping.*' seekers
EXPERIMENT = Experiment(
    env=EnvConfig(
        "base", "hide_and_seek", '{"hiders": 1, "seekers": 1, "global_state": true}', info_fields=PHASE_FIELDS
    ),
    network=NetworkConfig(
        "entities", hidden_sizes=(64, 64), activation="relu", core="lstm", core_size=64, circular=("lidar",)
    ),
    agent=PPOConfig(
        learning_rate=3e-4,
        discount=0.998,
        gae_lambda=0.95,
        clip_epsilon=0.2,
        entropy_coef=0.01,
        optimizer=OptimizerConfig(max_grad_norm=5.0),
        num_epochs=4,
        num_minibatches=4,
        value_normalization="popart",
        chunk_length=10,
        normalization=NormalizationConfig(observations=True, clip_observation=5.0),
    ),
    run=RunConfig(num_envs=64, rollout_length=80, total_env_steps=4_000_000, eval=EvalConfig(final_episodes=20)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
