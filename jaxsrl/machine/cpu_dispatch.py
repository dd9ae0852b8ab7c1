"""Programs for the processor run in the thread that calls them."""

import jax


def use_synchronous_cpu_dispatch() -> None:
    """Makes jax run single-device CPU programs in the calling thread, unless jax has already used its devices.

    By default jax hands each program to another thread, which helps when the caller has other work. Inference does not: it blocks
    on the actions. After a pause of 5 ms, waking that thread on a sleeping core makes a call of a small policy take some 550 us
    instead of 100, and training CartPole takes a quarter longer (docs/benchmarks). Results are the same. Programs for several
    devices and for accelerators are not affected.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
