"""SAC on a MuJoCo task. Run: python experiments/sac_mujoco.py --env.id Hopper-v5"""

import dataclasses

from agents.api import ReplayConfig
from agents.networks.config import NetworkConfig
from agents.sac import SACConfig, make_sac
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("HalfCheetah-v5")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(256, 256), activation="relu")
    agent: SACConfig = SACConfig(
        # Haarnoja et al. 2018, table 1: one gradient step on 256 transitions for each env step; Adam 3e-4 for all.
        replay=ReplayConfig(capacity=1_000_000, batch_size=256, min_size=10_000, samples_per_insert=256.0),
    )
    run: RunConfig = RunConfig(
        num_envs=8,
        rollout_length=4,
        env_steps=1_000_000,
        checkpoint_every_updates=3_000,
        keep_checkpoints=1,
        evaluation_episodes=10,
    )


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_sac(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
