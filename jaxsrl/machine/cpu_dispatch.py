"""Programs for the processor run in the thread that calls them."""

import jax


def dispatch_inline() -> None:
    """Has jax run programs of one device of the host where they are called, if it has not begun to use its devices.

    By default it hands each to a thread of its own, which is good for whoever has other work meanwhile. Who acts has not: it waits
    for the actions. With that thread asleep on a core that sleeps too, a call of a small policy takes some 550 us after 5 ms of
    pause in place of 100 (`python -m jaxsrl.bench.studies.cold_call`), and training CartPole goes a quarter slower (docs/benchmarks.md).
    Results are the same. Programs of several devices, and accelerators, are not concerned.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
