"""Host arrays between learner processes, as bytes in a device array: jax carries them, with gloo or NCCL.

Nothing is pickled. Lengths are rounded up to powers of two, so that few programs are compiled.
"""

import json

import numpy as np

Arrays = dict[str, np.ndarray]

_LENGTH_BYTES = 8
_LEAST_BYTES = 1024


def pack(arrays: Arrays) -> bytes:
    """Arrays by name as bytes: the length of a JSON header, the header, the arrays' memory one after the other."""
    header = [[name, array.dtype.name, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps(header).encode()
    body = [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *body])


def unpack(data: bytes) -> Arrays:
    """What `pack` packed; arrays are copies. Bytes after the last array are ignored."""
    begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    arrays: Arrays = {}
    for name, dtype, shape in json.loads(data[_LENGTH_BYTES:begin]):
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data, kind, count, begin).reshape(shape).copy()
        begin += count * kind.itemsize
    return arrays


def gather(data: bytes) -> list[bytes]:
    """What every process gave, in order of process id; with padding behind. All processes call it together."""
    from jax.experimental import multihost_utils

    lengths = multihost_utils.process_allgather(np.array([len(data)], np.int32))
    longest = _rounded(int(lengths.max()))
    padded = np.zeros(longest, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    return [row.tobytes() for row in multihost_utils.process_allgather(padded)]


def broadcast(data: bytes | None, length: int) -> bytes:
    """The bytes of process 0, at every process; with padding behind. All processes call it together.

    Args:
        data: at process 0.
        length: of the data, which all know.
    """
    from jax.experimental import multihost_utils

    padded = np.zeros(_rounded(length), np.uint8)
    if data is not None:
        padded[:length] = np.frombuffer(data, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes()


def _rounded(length: int) -> int:
    return max(_LEAST_BYTES, 1 << (length - 1).bit_length())
