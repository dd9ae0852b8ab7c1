"""`jaxsrl population`."""

import dataclasses
from pathlib import Path

import tyro

from jaxsrl.cli.commands.tune import space_to_json
from jaxsrl.cli.find_experiment import find_experiment
from jaxsrl.terminal.progress import show_line
from jaxsrl.terminal.tables import print_tables
from jaxsrl.tune.runs_on import RunsOn


@dataclasses.dataclass(frozen=True)
class TrainPopulation:
    """Train a population: after each round the worst members copy the best, and change their hyper-parameters.

    Each round of a member is an ordinary run. The same command continues a stopped population.

    Attributes:
        experiment: name of one in experiments/, here or of the package, or the path of a Python file.
        space: .toml, .yaml or .json file of ranges and choices: agent.learning_rate = {low = 1e-5, high = 1e-1, log = true}.
        members: number of members.
        rounds: number of rounds; a complete population can get more.
        env_steps: Env steps of each round.
        rule: "truncation" (Jaderberg et al. 2017), "sample_factory" (Petrenko et al. 2020), or "none".
        share: Share of the members that are the worst, and that are the best.
        at_once: members that train at the same time, each on cores of its own (on nodes: on as many reserved ones).
        runs_on: "here" is this machine; "auto" is the Ray cluster that is running; "local" starts a small one on this machine.
        directory: Directory of the population; by default runs/population_EXPERIMENT.
        seed: Seed of values, copies and changes, and of the runs.
        json: print one JSON object instead of a table.
        flags: Flags of the experiment, for all members.
    """

    experiment: tyro.conf.Positional[str]
    space: Path
    members: int = 8
    rounds: int = 10
    env_steps: int = 50_000
    rule: str = "truncation"
    share: float = 0.25
    at_once: int = 1
    runs_on: RunsOn = "here"
    directory: Path | None = None
    seed: int = 0
    json: bool = False
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()

    def run(self) -> int:
        """Trains the rounds that are missing, and prints the members of the last one."""
        from jaxsrl.tune.managed_runs import hold, validate_start
        from jaxsrl.tune.node_runs import connected_nodes, train_on
        from jaxsrl.tune.pbt import PBTConfig
        from jaxsrl.tune.population import Population, PopulationConfig, validate_members
        from jaxsrl.tune.space import read_space
        from jaxsrl.tune.study import Sweep

        path, space = find_experiment(self.experiment), read_space(self.space)
        entries = space_to_json(space)
        sweep = Sweep(str(path), entries, self.flags, "none", "random", seed=self.seed)
        made = sweep.make_experiment({name: entry.first for name, entry in space.items()})
        validate_members(made, space, self.flags)
        validate_start(made)
        rule = PBTConfig(rule=self.rule, share=self.share)  # pyright: ignore[reportArgumentType]
        config = PopulationConfig(
            str(path), entries, self.members, self.rounds, self.env_steps, rule, self.seed, self.flags
        )

        directory = self.directory or Path("runs") / f"population_{path.stem}"
        with hold(directory), connected_nodes(self.runs_on, directory, self.at_once, show_line) as nodes:
            population = Population(directory, config, show_line, train_on(nodes, self.at_once, show_line))
            status = population.run()
        history = population.state["history"]
        rows = [
            {"member": number, "score": member["score"], "copied_from": member["source"], **member["values"]}
            for number, member in enumerate(history[-1] if history else [])
        ]
        print_tables({"members": rows}, self.json, f"round {len(history)} of {self.rounds}")
        return status
