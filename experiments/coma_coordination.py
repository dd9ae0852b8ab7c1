"""COMA on a game of two agents with known values (Foerster et al. 2018)."""

from agents.multi_agent.coma import COMAConfig
from jaxsrl import EnvConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    # Without the global state, the critic sees what all agents see.
    env=EnvConfig("TwoStepTeam", suite="probe", kwargs='{"global_state": true}'),
    network=NetworkConfig(hidden_sizes=(64, 64)),
    agent=COMAConfig(learning_rate=5e-3, critic_learning_rate=5e-3),
    run=RunConfig(num_envs=64, rollout_length=16, total_env_steps=200_000),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
