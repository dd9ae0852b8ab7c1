"""Options of jax's compiler that save compilation time."""

import os


def compiler_options(platform: str) -> dict[str, int] | None:
    """Returns options for `jax.jit`: on CPUs machine code of the second-highest level of optimization, elsewhere None.

    Updates of PPO and Dreamer are as fast as at the highest level, and compile in two thirds of the time
    (docs/lab/compile_levels.py). A level in XLA_FLAGS is kept.
    """
    if platform != "cpu" or "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", ""):
        return None
    return {"xla_backend_optimization_level": 2}
