"""COMA on a game of two agents with known values. Run: python experiments/coma_coordination.py --env.id SecretSigns"""

import dataclasses

from agents.coma import COMAConfig, make_coma
from agents.networks.config import NetworkConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; without the global state, the critic sees what all agents see."""

    env: EnvConfig = EnvConfig("TwoStepTeam", suite="probe", kwargs='{"global_state": true}')
    policies: PoliciesConfig = PoliciesConfig()
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64))
    agent: COMAConfig = COMAConfig(learning_rate=5e-3, critic_learning_rate=5e-3)
    run: RunConfig = RunConfig(num_envs=64, rollout_length=16, env_steps=200_000, max_policy_lag=0)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_multi_policy_agent(spec, experiment.policies, lambda own: make_coma(config, own, experiment.network))
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
