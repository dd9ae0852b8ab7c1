"""Bytes between learner processes: any length, in pieces of one size."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from jaxsrl.cluster.learners import host_gather

NUM_PROCESSES = 2


@pytest.fixture
def exchanged(monkeypatch):
    """Two processes that give the same; the list is of the arrays' sizes, which went through jax."""
    sizes = []

    def to_all(array):
        sizes.append(array.size)
        return np.stack([np.asarray(jnp.asarray(array))] * NUM_PROCESSES)  # as jax: 64 bits become 32

    monkeypatch.setattr(multihost_utils, "process_allgather", to_all)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda array: to_all(array)[0])
    return sizes


class Long(bytes):
    """Says that it is 5 GiB long; what is behind its few bytes is nothing."""

    def __len__(self):
        return 5 * 2**30


def test_more_than_two_gib_are_gathered(exchanged, monkeypatch):
    pieces = []
    monkeypatch.setattr(host_gather, "_pieces", lambda data, length: pieces.append(length) or iter(()), raising=False)
    assert host_gather.gather(Long(b"abc")) == [b""] * NUM_PROCESSES
    assert pieces == [5 * 2**30]


@pytest.mark.parametrize("length", [0, 1, 1024, 4095, 4096, 4097, 20_000])
def test_data_in_pieces_come_whole(exchanged, monkeypatch, length):
    monkeypatch.setattr(host_gather, "_PIECE_BYTES", 4096, raising=False)
    data = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    found = host_gather.gather(data)
    assert [each[:length] for each in found] == [data] * NUM_PROCESSES
    assert host_gather.broadcast(data, length)[:length] == data
    assert max(exchanged) <= 4096
    assert {size for size in exchanged if size > 2} == {exchanged[-1]}  # one program is compiled, whatever the length
