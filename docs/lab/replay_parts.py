"""Where a draw and an insertion of the host's replay buffer spend their time, and what the whole costs every contender.

Run: python docs/lab/replay_parts.py

It counts the processor's time, of which a machine that does other things too changes little. Compiled programs use several
cores at once: what they take by the clock is less.
"""

import itertools
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from jaxsrl.bench.replay_sizes import ATARI, VECTOR, BenchSizes
from jaxsrl.bench.rivals.replay_buffers import installed_contenders
from jaxsrl.replay.device.philox import HostRandom
from jaxsrl.replay.host.sampler import HostSampler
from jaxsrl.replay.host.storage import HostStorage
from jaxsrl.replay.sizes import make_sizes

_ROUNDS, _CALLS = 25, 30


def microseconds_of_parts(sizes: BenchSizes) -> dict[str, float]:
    """Processor time of a call of each part, in microseconds: the least of 25 rounds of 30 calls, in turns."""
    slot = sizes.slot()
    ring = make_sizes(sizes.replay(0.0), slot)
    selector, storage, random = HostSampler(ring), HostStorage(ring, slot), HostRandom()
    contenders = installed_contenders(sizes, 0.0)
    for _ in range(ring.ring_steps // ring.rollout_length):
        selector.insert(slot.is_first, slot.valid)  # pyright: ignore[reportArgumentType]
        storage.insert(slot)
        for contender in contenders.values():
            contender.insert_some()
    words = np.zeros(2, np.uint32)
    # Others each time: the same windows would still be in the processor's caches.
    since = itertools.cycle([selector.draw(np.array([number, 0], np.uint32))[0] for number in range(200)])
    places = next(since) % (ring.ring_steps * ring.num_rows)
    reward = storage.arrays.reward.reshape(-1)
    parts: dict[str, Callable[[], object]] = {
        "host, draw: random numbers": lambda: random.bits(words, ring.batch_size),
        "host, draw: all of which windows": lambda: selector.draw(words),
        "host, draw: one small array": lambda: reward.take(places, 0, None, "clip"),
        "host, draw: copying the windows": lambda: storage.gather(next(since)),
        "host, insert: form and copies": lambda: storage.insert(slot),
        "host, insert: what can be drawn": lambda: selector.insert(slot.is_first, slot.valid),  # pyright: ignore[reportArgumentType]
    }
    for name, contender in contenders.items():
        parts |= {f"{name}: draw": partial(contender.sample, 0.0), f"{name}: insert": contender.insert_some}
    least = dict.fromkeys(parts, float("inf"))
    for _ in range(_ROUNDS):
        for name, call in parts.items():
            call()
            start = time.process_time()
            for _ in range(_CALLS):
                call()
            least[name] = min(least[name], (time.process_time() - start) / _CALLS * 1e6)
    return least


if __name__ == "__main__":
    for title, measured in (("atari", ATARI), ("vector", VECTOR)):
        for part, found in microseconds_of_parts(measured).items():
            sys.stdout.write(f"{title:8}{part:32}{found:8.1f} us\n")
