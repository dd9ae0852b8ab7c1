"""IMPALA on an Atari game, with the residual network of its paper and whole games (Espeholt et al. 2018)."""

from agents.impala import IMPALAConfig
from agents.ops.schedules import ScheduleConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5"),
    network=NetworkConfig("impala_resnet", hidden_sizes=(256,), activation="relu"),
    agent=IMPALAConfig(learning_rate=6e-4, learning_rate_schedule=ScheduleConfig("linear"), reward_clip=1.0),
    run=RunConfig(num_envs=32, rollout_length=20, total_env_steps=50_000_000, eval=EvalConfig(final_episodes=10)),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
