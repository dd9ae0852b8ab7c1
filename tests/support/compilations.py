"""A record of the programs that jax compiles, for tests."""

import contextlib
import logging
import threading
from collections.abc import Iterator

import jax

_LOGGERS = ("jax._src.interpreters.pxla", "jax._src.dispatch", "jax._src.compiler")


class _Record(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.programs: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage().split()
        if words[:3] == ["Finished", "XLA", "compilation"]:
            self.programs.append((threading.current_thread().name, words[4]))


@contextlib.contextmanager
def compilations() -> Iterator[list[tuple[str, str]]]:
    """Yields (thread, program) of each compilation inside the block, in order; clears jax's earlier compilations."""
    record, loggers = _Record(), [logging.getLogger(name) for name in _LOGGERS]
    before = jax.config.jax_log_compiles
    jax.clear_caches()
    jax.config.update("jax_log_compiles", True)
    for logger in loggers:
        logger.addHandler(record)
        logger.propagate = False
    try:
        yield record.programs
    finally:
        for logger in loggers:
            logger.removeHandler(record)
            logger.propagate = True
        jax.config.update("jax_log_compiles", before)
