"""R2D2 on a task that needs a memory, the RememberCue probe. Run: python experiments/r2d2_remember_cue.py --run.seed 1"""

import dataclasses

from agents.api import ReplayConfig
from agents.networks.config import NetworkConfig
from agents.ops.epsilon_greedy import Exploration
from agents.r2d2 import R2D2Config, make_r2d2
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; saved beside every checkpoint."""

    env: EnvConfig = EnvConfig("RememberCue", suite="probe")
    network: NetworkConfig = NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=16)
    agent: R2D2Config = R2D2Config(
        replay=ReplayConfig(
            capacity=20_000, batch_size=32, min_size=1_000, samples_per_insert=1.0, priority_exponent=0.9
        ),
        exploration=Exploration(0.4, 0.4, ladder=7.0),
        learning_rate=5e-3,
        discount=0.9,
        num_steps=3,
        target_period=50,
        burn_in=4,
        length=9,
        period=8,
    )
    run: RunConfig = RunConfig(
        num_envs=16, rollout_length=8, env_steps=30_000, evaluation_episodes=100, checkpoint_every_updates=0
    )


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_r2d2(config, spec, experiment.network)
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
