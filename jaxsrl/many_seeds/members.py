"""Configuration of each seed's own run."""

import dataclasses
from typing import Any

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig


def member_configs(config: RunConfig) -> list[RunConfig]:
    """Returns the configurations of single runs, of the seeds `seed` to `seed + seeds - 1`.

    A name gets the values that differ by seed, and the suffix "_seedN".
    """
    single: dict[str, Any] = {"seeds": 1, "seeds_at_once": 1, "seed_learning_rates": (), "seed_entropy_coefs": ()}
    members: list[RunConfig] = []
    for seed, values in enumerate(member_values(config), config.seed):
        own = "".join(f"_{name}={value}" for name, value in values.items())
        name = f"{config.name}{own}_seed{seed}" if config.name else ""
        members.append(dataclasses.replace(config, **single, seed=seed, name=name))
    return members


def member_values(config: RunConfig) -> list[dict[str, float]]:
    """Returns, for each seed, the values of the agent's options that differ by seed, by name."""
    lists = {"learning_rate": config.seed_learning_rates, "entropy_coef": config.seed_entropy_coefs}
    return [{name: values[member] for name, values in lists.items() if values} for member in range(config.seeds)]


def member_experiments(experiment: Any) -> list[Any]:
    """Returns the experiments of single runs: those that a user would train one by one.

    Args:
        experiment: dataclass with the fields `agent` and `run`.

    Raises:
        UserError: If the agent lacks an option that differs by seed, or does not accept a value.
    """
    pairs = zip(member_configs(experiment.run), member_values(experiment.run), strict=True)
    return [dataclasses.replace(with_values(experiment, values), run=own) for own, values in pairs]


def with_values(experiment: Any, values: dict[str, Any]) -> Any:
    """Returns the experiment with these options of its agent.

    Raises:
        UserError: If the agent lacks an option, or does not accept a value.
    """
    if not values:
        return experiment
    for name in values.keys() - {field.name for field in dataclasses.fields(experiment.agent)}:
        raise UserError(
            f"run.seed_{name}s: expected an agent with the option {name}, got {type(experiment.agent).__name__}, which has none"
        )
    return dataclasses.replace(experiment, agent=dataclasses.replace(experiment.agent, **values))
