"""MADDPG on a multi-particle task with continuous actions. Run: python experiments/maddpg_mpe.py --env.id simple_adversary_v3"""

import dataclasses

from agents.api import ReplayConfig
from agents.maddpg import MADDPGConfig, make_maddpg
from agents.networks.config import NetworkConfig
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; every agent has its own reward, and its own actor and critic."""

    env: EnvConfig = EnvConfig("simple_spread_v3", suite="mpe", kwargs='{"continuous_actions": true}')
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64), activation="relu")
    agent: MADDPGConfig = MADDPGConfig(
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        replay=ReplayConfig(capacity=300_000, batch_size=256, min_size=9_600, samples_per_insert=1.0),
    )
    run: RunConfig = RunConfig(num_envs=96, rollout_length=25, env_steps=1_000_000)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_multi_policy_agent(spec, PoliciesConfig(), lambda own: make_maddpg(config, own, experiment.network))
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
