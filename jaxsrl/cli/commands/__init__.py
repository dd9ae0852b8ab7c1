"""The commands of `jaxsrl`, one a file: a frozen dataclass whose docstring is its --help, with `run`, which returns its status."""
