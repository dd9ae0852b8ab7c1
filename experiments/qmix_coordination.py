"""QMIX on a game of two agents with known values. Run: python experiments/qmix_coordination.py --env.id TwoStepTeam"""

import dataclasses

from agents.api import ReplayConfig
from agents.networks.config import NetworkConfig
from agents.ops.epsilon_greedy import Exploration
from agents.qmix import QMIXConfig, make_qmix
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; without the global state, the mixer sees what all agents see."""

    env: EnvConfig = EnvConfig("TwoStepUnequal", suite="probe", kwargs='{"global_state": true}')
    network: NetworkConfig = NetworkConfig(hidden_sizes=(32,))
    agent: QMIXConfig = QMIXConfig(
        learning_rate=3e-3,
        target_period=20,
        exploration=Exploration(1.0, 1.0),  # all pairs equally often, as the paper explores this game
        replay=ReplayConfig(capacity=8_192, batch_size=64, min_size=1_024, samples_per_insert=2.0),
    )
    run: RunConfig = RunConfig(num_envs=64, rollout_length=8, env_steps=60_000, checkpoint_every_updates=0)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_multi_policy_agent(spec, PoliciesConfig(), lambda own: make_qmix(config, own, experiment.network))
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
