"""MAPPO on a multi-particle task: one policy for all agents, values that see everything. Run: python experiments/mappo_mpe.py"""

import dataclasses

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.envs.registry import source_of
from jaxsrl.experiment import train_and_evaluate
from jaxsrl.launch import launch
from jaxsrl.population.policies import PoliciesConfig, make_multi_policy_agent


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that changes the run; without the global state (IPPO), values see what their agents do."""

    env: EnvConfig = EnvConfig("simple_spread_v3", suite="mpe", kwargs='{"team_reward": "mean", "global_state": true}')
    policies: PoliciesConfig = PoliciesConfig()
    network: NetworkConfig = NetworkConfig(hidden_sizes=(64, 64))
    agent: PPOConfig = PPOConfig(learning_rate=7e-4, num_epochs=10, num_minibatches=1, entropy_coef=0.01)
    run: RunConfig = RunConfig(num_envs=96, rollout_length=25, env_steps=2_000_000)


def main(experiment: Experiment) -> None:
    """Composes and trains."""
    source = source_of(experiment.env)
    spec = source.spec()
    config = dataclasses.replace(experiment.agent, total_updates=experiment.run.num_updates)
    agent = make_multi_policy_agent(spec, experiment.policies, lambda own: make_ppo(config, own, experiment.network))
    train_and_evaluate(experiment, agent, source, spec, experiment.run)


if __name__ == "__main__":
    launch(main, Experiment, __doc__)
