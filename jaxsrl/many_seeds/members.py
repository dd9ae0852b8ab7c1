"""Configuration of each seed's own run."""

import dataclasses

from jaxsrl.config.run_config import RunConfig


def member_configs(config: RunConfig) -> list[RunConfig]:
    """Returns the configurations of single runs, of the seeds `seed` to `seed + seeds - 1`.

    A given name gets the suffix "_seedN". A derived name contains the seed already.
    """
    seeds = range(config.seed, config.seed + config.seeds)
    return [
        dataclasses.replace(
            config, seed=seed, seeds=1, seeds_at_once=1, name=f"{config.name}_seed{seed}" if config.name else ""
        )
        for seed in seeds
    ]
