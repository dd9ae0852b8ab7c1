"""RunConfigs from keyword arguments: `run_config(num_envs=4, pool_num_workers=2)`."""

import dataclasses
from typing import Any

from jaxsrl.config.changes import with_options
from jaxsrl.config.run_config import RunConfig

OWN = {field.name for field in dataclasses.fields(RunConfig)}


def change_run(config: RunConfig, **options: Any) -> RunConfig:
    """Returns the configuration with options changed; those of a part are named `part_field`."""
    return with_options(config, {name if name in OWN else name.replace("_", ".", 1): options[name] for name in options})


def run_config(**options: Any) -> RunConfig:
    """Returns a RunConfig with options that differ from the defaults; those of a part are named `part_field`."""
    return change_run(RunConfig(), **options)
