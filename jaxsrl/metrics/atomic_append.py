"""Append-only file whose appends are all or nothing."""

from pathlib import Path


class AtomicAppendFile:
    """Unbuffered file opened for appending. An append that fails leaves no partial data. One thread, one process.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  stays open for the run
        self._size = self._file.seek(0, 2)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    def append(self, data: bytes) -> None:
        """Writes the data at the end.

        Raises:
            OSError: If it could not be written in full, for example because the disk is full. The file is then unchanged.
        """
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError:
            if written:
                self._file.truncate(self._size)
            raise
        self._size += written

    def truncate(self, size: int) -> None:
        """Truncates the file to its first `size` bytes."""
        self._file.truncate(size)
        self._size = size

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._file.close()
