"""PPG on CartPole-v1 with environment processes. Run: python experiments/ppg_cartpole.py --run.seed 1"""

import dataclasses

from agents.networks.config import NetworkConfig
from agents.ppg import PPGConfig, make_ppg
from agents.transforms.normalization import NormalisationConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("CartPole-v1")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64))
    agent: PPGConfig = PPGConfig(
        learning_rate=7e-4,
        learning_rate_schedule="linear",
        discount=0.98,
        gae_lambda=0.8,
        entropy_coef=0.005,
        num_epochs=4,
        num_policy_phases=16,
        num_auxiliary_minibatches=2,
        normalisation=NormalisationConfig(rewards=True),
    )
    run: RunConfig = RunConfig(num_envs=128, rollout_length=32, env_steps=1_500_000)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source, run = source_of(experiment.env), experiment.run
    spec = source.spec()
    # The sizes of what is kept are saved with the experiment, so that its checkpoints can be read without it.
    sized = dataclasses.replace(experiment.agent, rollout_length=run.rollout_length, num_rows=run.num_envs)
    experiment = dataclasses.replace(experiment, agent=sized)
    agent = make_ppg(dataclasses.replace(sized, total_updates=run.num_updates), spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
