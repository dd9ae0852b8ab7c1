"""How often a process that only steps environments looks for garbage in cycles."""

import gc

_OBJECTS = 50_000  # that are new since the last look; Python's own setting is 700


def look_rarely() -> None:
    """Leaves what is there now out of every later search, and searches only once many objects have been made and kept.

    A search goes through all rows' results while they wait to be written, some hundred times a second; it takes 1 to 3 % of
    CartPole's speed (docs/benchmarks) and finds nothing: what a step makes is freed by its reference counts. Environments that
    leave cycles behind are still cleaned up after, in larger portions.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS, 20, 100)
