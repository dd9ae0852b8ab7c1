"""Parent's end of the connection to a worker, whose own end is a `multiprocessing.connection.Connection`."""

import pickle
import select
import socket
import struct
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

_LENGTH, _LONG_LENGTH = struct.Struct("!i"), struct.Struct("!Q")
_MAX_LENGTH = 2**31 - 1
_LONG = b"\xff\xff\xff\xff"  # -1: the length follows, in 8 bytes
_CHUNK_BYTES = 2**20


class WorkerChannel:
    """Sends and receives pickled messages in the framing of `Connection`. One thread at a time in each direction.

    `Connection.recv` blocks in the middle of a message whose sender was stopped. `receive` never blocks.

    Args:
        end: socket, owned by the channel.
        send_seconds: `send` fails when the worker neither reads nor sends anything for this time.

    Attributes:
        descriptor: readable after data has arrived, and permanently after the other end was closed.
        has_ended: whether `receive` has seen the other end closed.
    """

    def __init__(self, end: socket.socket, send_seconds: float) -> None:
        self._socket, self.descriptor, self._send_seconds = end, end.fileno(), send_seconds
        self._received = bytearray()
        self.has_ended = False

    def send(self, message: object, receive: Callable[[], object]) -> None:
        """Sends a message.

        A worker that is itself in a send does not read before its message is received.

        Args:
            message: anything that can be pickled.
            receive: called when data has arrived while the worker does not read; calls this channel's `receive`.

        Raises:
            BlockingIOError: If the worker did not read in time, and may have received a part of the message.
            OSError: If the worker has ended.
        """
        data = bytes(ForkingPickler.dumps(message))
        long = len(data) > _MAX_LENGTH
        header = _LONG + _LONG_LENGTH.pack(len(data)) if long else _LENGTH.pack(len(data))
        rest = memoryview(header + data)
        while rest:
            try:
                rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(self.descriptor, select.POLLIN | select.POLLOUT)
                ready = poll.poll(self._send_seconds * 1e3)
                if not ready:
                    raise
                if ready[0][1] & select.POLLIN:
                    receive()

    def receive(self) -> list[object]:
        """Returns the messages that have arrived completely; keeps the start of an incomplete one.

        In place of a message that cannot be unpickled here, the list holds the exception that says why.
        """
        self._read()
        messages: list[object] = []
        while (span := self._first_span()) is not None:
            data = self._received[span]
            del self._received[: span.stop]  # before the loading, which may run any code of the message's classes
            try:
                messages.append(pickle.loads(data))
            except Exception as error:  # noqa: BLE001  of any class
                messages.append(error)
        return messages

    def discard(self) -> None:
        """Drops all that has arrived, also a part of a message: call `receive` no more."""
        self._read()
        self._received.clear()

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _read(self) -> None:
        """Reads the bytes that have arrived."""
        try:
            while chunk := self._socket.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT):
                self._received += chunk
            self.has_ended = True
        except BlockingIOError:  # nothing more for now
            pass
        except OSError:  # the other end was closed with unread messages
            self.has_ended = True

    def _first_span(self) -> slice | None:
        """Returns the slice of the first message in the received bytes; None if it is incomplete."""
        begin = _LENGTH.size
        if len(self._received) < begin:
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        if length < 0:
            begin += _LONG_LENGTH.size
            if len(self._received) < begin:
                return None
            (length,) = _LONG_LENGTH.unpack_from(self._received, _LENGTH.size)
        end = begin + length
        return slice(begin, end) if len(self._received) >= end else None
