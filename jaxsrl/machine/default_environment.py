"""Environment variables that are set for a while, for libraries that read them."""

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def default_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets these environment variables, inside, unless the user has set them."""
    changed = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name in changed:
            os.environ.pop(name, None)
