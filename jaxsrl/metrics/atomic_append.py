"""A file that grows by whole pieces: one that could not be written in full leaves nothing behind."""

from pathlib import Path


class AtomicAppendFile:
    """A file opened for appending, without a buffer. One thread, one process."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it.

        Raises:
            OSError: it cannot be opened.
        """
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  open as long as the run
        self._size = self._file.seek(0, 2)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    def append(self, piece: bytes) -> None:
        """Writes the piece at the end.

        Raises:
            OSError: it could not be written in full, because the disk is full, say; then nothing of it is there.
        """
        written = 0
        try:
            while written < len(piece):
                written += self._file.write(piece[written:]) or 0
        except OSError:
            if written:
                self._file.truncate(self._size)
            raise
        self._size += written

    def cut(self, size: int) -> None:
        """Leaves the first `size` bytes."""
        self._file.truncate(size)
        self._size = size

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._file.close()
