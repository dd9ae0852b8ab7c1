"""DreamerV3 on Crafter, from images."""

from agents.dreamer import DreamerConfig
from agents.world_models.sizes import WorldModelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, ReplayMemoryConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("CrafterReward-v1", suite="crafter", info_fields=("achievements",)),
    network=NetworkConfig(dtype="bfloat16"),
    agent=DreamerConfig(
        # Train ratio 512: 8 windows of 64 steps for each env step. The paper's size is 200m.
        replay=ReplayConfig(capacity=1_000_000, batch_size=16, min_size=2_048, gradient_steps_per_env_step=0.5),
        model=WorldModelConfig("12m"),
    ),
    run=RunConfig(
        num_envs=16,
        rollout_length=16,
        total_env_steps=1_000_000,
        eval=EvalConfig(final_episodes=20),
        replay=ReplayMemoryConfig(memory="host"),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
