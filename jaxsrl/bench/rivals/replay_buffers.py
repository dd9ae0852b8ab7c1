"""Contenders of the replay benchmark: our buffers and installed ones of other libraries, on the same work."""

import dataclasses
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from agents.api import Array, Trajectory
from jaxsrl.bench.replay_sizes import BenchSizes
from jaxsrl.bench.rivals.replay_numpy import careful_ring, plain_ring, steps_of
from jaxsrl.bench.turns import calls_per_second
from jaxsrl.replay.device.sampler import Selection, draw, init_selection, insert_slot, update_priorities
from jaxsrl.replay.device.storage import init_storage, insert
from jaxsrl.replay.device.windows import gather_windows
from jaxsrl.replay.host.buffer import HostBuffer
from jaxsrl.replay.sizes import RingSizes, make_sizes

RATES = ("insert", "sample")


@dataclasses.dataclass(frozen=True)
class Contender:
    """A replay buffer at work.

    Attributes:
        insert_some: inserts some data; returns the number of env steps.
        insert: inserts for some seconds, at least once; returns env steps per second.
        sample: samples for some seconds, at least once; returns windows per second.
        bytes_per_env_step: returns the memory used per stored env step.
    """

    insert_some: Callable[[], float]
    insert: Callable[[float], float]
    sample: Callable[[float], float]
    bytes_per_env_step: Callable[[], float]


def _in_process(
    sizes: BenchSizes, insert_one: Callable[[], object], sample_one: Callable[[], object], num_bytes: int
) -> Contender:
    """Returns a contender of functions that insert one trajectory and sample one batch, and wait for it."""

    def insert_some() -> int:
        insert_one()
        return sizes.env_steps

    return Contender(
        insert_some,
        lambda seconds: calls_per_second(insert_one, seconds) * sizes.env_steps,
        lambda seconds: calls_per_second(sample_one, seconds) * sizes.batch_size,
        lambda: num_bytes / sizes.capacity,
    )


def installed_contenders(sizes: BenchSizes, priority_exponent: float) -> dict[str, Contender]:
    """Returns contenders by name: ours on "device" and "host", two rings in numpy, and "flashbax" if installed."""
    contenders: dict[str, Contender] = {
        "device": _device(sizes, priority_exponent),
        "host": _host(sizes, priority_exponent),
    }
    if not priority_exponent:
        contenders["numpy"] = _in_process(sizes, *plain_ring(sizes))
        contenders["numpy, same rules"] = _in_process(sizes, *careful_ring(sizes))
    if importlib.util.find_spec("flashbax") is not None:
        contenders["flashbax"] = _flashbax(sizes, priority_exponent)
    return contenders


def _device(sizes: BenchSizes, priority_exponent: float) -> Contender:
    slot = sizes.slot()
    ring = make_sizes(sizes.replay(priority_exponent), slot)
    add = jax.jit(partial(_insert_slot, ring), donate_argnums=(0, 1))
    take = jax.jit(partial(_sample_windows, ring), donate_argnums=1 if priority_exponent else ())
    storage = jax.jit(partial(init_storage, ring, slot))()
    held, numbers = {"storage": storage, "selection": jax.jit(partial(init_selection, ring))()}, iter(range(2**31))
    num_bytes = _bytes(held["storage"]) + _bytes(held["selection"])
    placed = jax.device_put(slot)

    def insert_one() -> None:
        held["storage"], held["selection"] = add(held["storage"], held["selection"], placed)
        jax.block_until_ready((held["storage"], held["selection"]))

    def sample_one() -> None:
        words = np.array([next(numbers), 0], np.uint32)
        windows, selection = take(held["storage"], held["selection"], words)
        held["selection"] = selection if priority_exponent else held["selection"]
        jax.block_until_ready((windows, held["selection"]))

    return _in_process(sizes, insert_one, sample_one, num_bytes)


def _insert_slot(
    ring: RingSizes, storage: Trajectory, selection: Selection, slot: Trajectory
) -> tuple[Trajectory, Selection]:
    storage = insert(ring, storage, selection.position, slot)
    is_first = slot.is_first[ring.history : ring.history + ring.rollout_length]
    return storage, insert_slot(ring, selection, is_first, slot.valid)


def _sample_windows(
    ring: RingSizes, storage: Trajectory, selection: Selection, words: Array
) -> tuple[tuple[Trajectory, Array, Array], Any]:
    drawn = draw(ring, selection, words)
    windows = gather_windows(ring, storage, selection.position, drawn.begin, drawn.group)
    sample = (windows, drawn.probability, drawn.num_windows)
    if not ring.priority_exponent:
        return sample, ()
    return sample, update_priorities(ring, selection, drawn, abs(windows.reward[0]))


def _host(sizes: BenchSizes, priority_exponent: float) -> Contender:
    slot = sizes.slot()
    buffer = HostBuffer(sizes.replay(priority_exponent), slot)
    numbers = iter(range(2**31))

    def sample_one() -> None:
        sample, drawn = buffer.sample(np.array([next(numbers), 0], np.uint32))
        if drawn is not None:
            buffer.update_priorities(drawn, np.abs(sample.trajectory.reward[0]))

    return _in_process(sizes, lambda: buffer.insert(slot), sample_one, buffer.num_bytes)


def _flashbax(sizes: BenchSizes, priority_exponent: float) -> Contender:
    """Returns Flashbax's trajectory buffer of single frames. Like ours, it stores each once and draws sequences."""
    import flashbax  # pyright: ignore[reportMissingImports]

    lengths: dict[str, Any] = {
        "add_batch_size": sizes.num_rows,
        "sample_batch_size": sizes.batch_size,
        "sample_sequence_length": sizes.sequence_length,
        "period": 1,
        "min_length_time_axis": sizes.sequence_length,
        "max_length_time_axis": sizes.ring_steps,
    }
    if priority_exponent:
        make = partial(flashbax.make_prioritised_trajectory_buffer, priority_exponent=priority_exponent)
        buffer: Any = make(**lengths, device=jax.default_backend())
    else:
        buffer = flashbax.make_trajectory_buffer(**lengths)
    rows_first = {name: np.swapaxes(array, 0, 1) for name, array in steps_of(sizes, sizes.slot()).items()}
    state = jax.jit(buffer.init)({name: array[0, 0] for name, array in rows_first.items()})
    held, num_bytes = {"state": state, "number": 0}, _bytes(state)
    batch = jax.device_put(rows_first)
    add = jax.jit(buffer.add, donate_argnums=0)

    def take(state: Any, number: Array) -> tuple[Any, Any]:
        sample = buffer.sample(state, jax.random.key(number))
        if priority_exponent:
            state = buffer.set_priorities(state, sample.indices, abs(sample.experience["reward"][:, 0]))
        return sample.experience, state if priority_exponent else ()

    taken = jax.jit(take, donate_argnums=0 if priority_exponent else ())

    def insert_one() -> None:
        held["state"] = add(held["state"], batch)
        jax.block_until_ready(held["state"])

    def sample_one() -> None:
        held["number"] += 1
        windows, state = taken(held["state"], np.uint32(held["number"]))
        held["state"] = state if priority_exponent else held["state"]
        jax.block_until_ready((windows, held["state"]))

    return _in_process(sizes, insert_one, sample_one, num_bytes)


def _bytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
