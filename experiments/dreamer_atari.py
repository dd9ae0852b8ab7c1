"""DreamerV3 on an Atari game with the published protocol: sticky actions, whole games, grey frames of 96 x 96 pixels."""

from agents.dreamer import DreamerConfig
from agents.world_models.sizes import WorldModelConfig
from jaxsrl import EnvConfig, EvalConfig, Experiment, NetworkConfig, ReplayConfig, ReplayMemoryConfig, RunConfig
from jaxsrl.experiment import cli

EXPERIMENT = Experiment(
    env=EnvConfig("ALE/Pong-v5", kwargs='{"frame_stack": 1, "screen_size": 96, "repeat_action_probability": 0.25}'),
    network=NetworkConfig(dtype="bfloat16"),
    agent=DreamerConfig(
        # Train ratio 32: half a window of 64 steps for each env step. The paper's size is 200m.
        replay=ReplayConfig(capacity=1_000_000, batch_size=16, min_size=2_048, gradient_steps_per_env_step=1 / 32),
        model=WorldModelConfig("12m"),
    ),
    run=RunConfig(
        num_envs=16,
        rollout_length=16,
        total_env_steps=10_000_000,
        eval=EvalConfig(final_episodes=10),
        replay=ReplayMemoryConfig(memory="host"),
    ),
)

if __name__ == "__main__":
    cli(EXPERIMENT)
