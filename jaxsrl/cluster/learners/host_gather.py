"""Host arrays between learner processes, as bytes in a device array: jax carries them, with gloo or NCCL.

Nothing is pickled. Lengths are rounded up to powers of two, so that few programs are compiled, and long data go in pieces.
"""

import json
from collections.abc import Iterator

import numpy as np

from jaxsrl.checkpoints.store import Arrays

_LENGTH_BYTES = 8
_LEAST_BYTES, _PIECE_BYTES = 1024, 2**28
_WORD = 2**32


def pack(arrays: Arrays) -> bytes:
    """Packs arrays by name into bytes: the length of a JSON header, the header, the arrays' memory one after the other."""
    header = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps(header).encode()
    body = [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *body])


def unpack(data: bytes) -> Arrays:
    """Returns copies of the arrays that `pack` packed. Bytes after the last array are ignored."""
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    arrays: Arrays = {}
    for name, dtype, shape in json.loads(data[_LENGTH_BYTES:start]):
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data, kind, count, start).reshape(shape).copy()
        start += count * kind.itemsize
    return arrays


def gather(data: bytes) -> list[bytes]:
    """Returns the bytes of every process, in order of process id, with padding behind. All processes call it together."""
    from jax.experimental import multihost_utils

    # Two uint32: without x64 jax cuts int64 down to int32, which overflows at 2 GiB.
    words = multihost_utils.process_allgather(np.array(divmod(len(data), _WORD), np.uint32))
    longest = max(int(high) * _WORD + int(low) for high, low in words)
    pieces = [multihost_utils.process_allgather(piece) for piece in _pieces(data, longest)]
    return [b"".join(piece[process].tobytes() for piece in pieces) for process in range(len(words))]


def broadcast(data: bytes | None, length: int) -> bytes:
    """Returns the bytes of process 0, at every process, with padding behind. All processes call it together.

    Args:
        data: Data at process 0.
        length: Length of the data, which all know.
    """
    from jax.experimental import multihost_utils

    pieces = _pieces(data or b"", length)
    return b"".join(np.asarray(multihost_utils.broadcast_one_to_all(piece)).tobytes() for piece in pieces)


def _pieces(data: bytes, length: int) -> Iterator[np.ndarray]:
    """Yields `data` as padded arrays of one size, as many as `length` bytes need."""
    size = min(_rounded(length), _PIECE_BYTES)
    for start in range(0, max(length, 1), size):
        piece = np.zeros(size, np.uint8)
        part = np.frombuffer(data[start : start + size], np.uint8)
        piece[: len(part)] = part
        yield piece


def _rounded(length: int) -> int:
    return max(_LEAST_BYTES, 1 << (length - 1).bit_length())
