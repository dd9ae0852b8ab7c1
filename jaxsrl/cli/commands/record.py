"""`jaxsrl record`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from jaxsrl.cli.unused_options import validate_unused
from jaxsrl.terminal.progress import show_line
from jaxsrl.terminal.tables import print_tables

if TYPE_CHECKING:
    from jaxsrl.datasets.dataset import Dataset


@dataclasses.dataclass(frozen=True)
class Record:
    """Record whole episodes of a run's policy, or its replay buffer, as a dataset.

    Attributes:
        path: run directory, RUN@TAG, or directory of a checkpoint.
        out: directory to create.
        episodes: number of episodes; 0 for as many as --env-steps needs.
        env_steps: least number of env steps; 0 for as many as --episodes have. Episodes in progress when they are reached are
            recorded to their ends.
        stochastic: sample actions instead of taking the most likely one.
        random: take random actions only.
        replay: write the steps of the checkpoint's replay buffer instead of playing.
        epsilon: probability of a random action at each step.
        seed: Seed of environments and actions.
        max_rows: number of concurrent environments.
        max_episode_steps: env steps after which an episode is truncated; None for that of the run's evaluations.
        stall_timeout_seconds: longest time between two steps, after which the command fails.
        trust_env: import the modules that the checkpoint names, of its environment and its agent, which runs their code.
        json: print one JSON object instead of a table.
    """

    path: tyro.conf.Positional[Path]
    out: Path
    episodes: int = 0
    env_steps: int = 0
    stochastic: bool = False
    random: bool = False
    replay: bool = False
    epsilon: float = 0.0
    seed: int = 0
    max_rows: int = 32
    max_episode_steps: int | None = None
    stall_timeout_seconds: float = 1800.0
    trust_env: bool = False
    json: bool = False

    def run(self) -> int:
        """Records, and prints a description of the dataset."""
        from jaxsrl.datasets.dataset import describe
        from jaxsrl.evaluation.load_agent import load_agent
        from jaxsrl.evaluation.progress import step_deadline
        from jaxsrl.evaluation.record_replay import record_replay

        if self.replay:
            played = (
                "episodes",
                "env_steps",
                "stochastic",
                "random",
                "epsilon",
                "seed",
                "max_rows",
                "max_episode_steps",
                "stall_timeout_seconds",
            )
            validate_unused(self, played, "--replay writes recorded steps and plays nothing")
            loaded = load_agent(self.path, trust_env=self.trust_env)
            origin = {"run": str(self.path), "agent": loaded.agent.name, "update": loaded.update}
            print_tables(describe(record_replay(loaded, self.out, origin)), self.json, f"dataset {self.out}")
            return 0
        if self.random:
            validate_unused(self, ("stochastic", "epsilon"), "--random takes random actions only")
        with step_deadline(self.stall_timeout_seconds, option="--stall-timeout-seconds"):
            dataset = self._play()
        print_tables(describe(dataset), self.json, f"dataset {self.out}")
        return 0

    def _play(self) -> "Dataset":
        """Plays and records episodes."""
        from agents.api import Mode
        from jaxsrl.evaluation.evaluate import describe_limit
        from jaxsrl.evaluation.load_agent import load_agent, saved_options
        from jaxsrl.evaluation.record import RecordConfig, record

        config = RecordConfig(
            episodes=self.episodes,
            env_steps=self.env_steps,
            epsilon=1.0 if self.random else self.epsilon,
            mode=Mode.SAMPLE if self.stochastic else Mode.GREEDY,
            seed=self.seed,
            max_rows=self.max_rows,
            max_episode_steps=self.max_episode_steps,
        )
        loaded = load_agent(self.path, trust_env=self.trust_env)
        if self.max_episode_steps is None and (run := saved_options(loaded.metadata)) is not None:
            config = dataclasses.replace(config, max_episode_steps=run.eval.max_episode_steps)
        if line := describe_limit(loaded.source.spec(), config.max_episode_steps, "--max-episode-steps"):
            show_line(line)
        env = loaded.metadata.get("experiment", {}).get("env")
        origin = {
            "run": str(self.path),
            "agent": "random" if self.random else loaded.agent.name,
            "update": loaded.update,
        }
        env = env if isinstance(env, dict) else None
        return record(loaded.agent, loaded.params, loaded.source, self.out, config, env, origin)
