"""POSIX shared-memory segment: created by its owner, passed to children as a descriptor, and freed by the kernel.

The name exists only between creation and the unlink right after it. Whichever process dies later, by SIGKILL too, the
kernel frees the memory with its last user. The pages are reserved before they are mapped, so a /dev/shm that is too
small raises an error here instead of a SIGBUS at the first write.
"""

import errno
import mmap
import os
import platform
import secrets

import posix_ipc

from envpool_bridge.errors import LayoutMismatchError, SegmentTooLargeError, UserError
from envpool_bridge.limits import free_host_bytes
from envpool_bridge.shm.layout import FORMAT_VERSION, SlotLayout

MAGIC = b"JAXSRL\x00\x01"
RUN_ID_BYTES = 16
# magic 0..8, format version 8..16, layout hash 16..48, run id 48..64


def validate_machine() -> None:
    """Raises UserError unless this machine can run worker processes: Linux, and the store order of x86-64.

    A counter that a plain store publishes must become visible after its payload. Other architectures, such as arm64, need
    barriers there, which Python does not offer.
    """
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in {"x86_64", "AMD64"}:
        raise UserError(
            f"worker processes need Linux on x86-64, got {system} on {machine}: use gymnasium.vector.SyncVectorEnv, or in jaxsrl "
            f"--plan serial, or device_only for environments written in JAX"
        )


class SharedBytes:
    """Mapped shared memory. Process-safety: the creator owns it; children map the descriptor they were given.

    Args:
        descriptor: Descriptor from `reserve`.
        num_bytes: expected size.

    Attributes:
        descriptor: open file descriptor of the memory, to be passed to children.
        buffer: the whole memory, writable.

    Raises:
        LayoutMismatchError: If the memory has another size.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        size = os.fstat(descriptor).st_size
        if size != num_bytes:
            raise LayoutMismatchError(f"expected a segment of {num_bytes} bytes, got {size}")
        self.descriptor = descriptor
        # The buffer and its views own the mapping, so it is unmapped with the last of them.
        self.buffer = memoryview(mmap.mmap(descriptor, num_bytes))

    def close(self) -> None:
        """Closes the descriptor and drops the buffer; idempotent. Existing views stay valid and keep the memory alive."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self.buffer.release()


class Segment(SharedBytes):
    """A pool's segment; use `create` or `attach`.

    Attributes:
        run_id: 16 random bytes that distinguish this segment from every other.
    """

    def __init__(self, descriptor: int, layout: SlotLayout, run_id: bytes) -> None:
        super().__init__(descriptor, layout.total_bytes)
        self.run_id = run_id


def reserve(num_bytes: int, purpose: str) -> int:
    """Returns a descriptor of new, zero-filled shared memory, mode 0600, unlinked and with its pages reserved.

    Args:
        num_bytes: size.
        purpose: subject of the error message, e.g. "the trajectory ring".

    Raises:
        UserError: see `validate_machine`.
        SegmentTooLargeError: /dev/shm, or the memory that this process may use, cannot hold it.
    """
    validate_machine()
    free = free_host_bytes()
    if free is not None and num_bytes > free:  # the kernel would kill this process
        raise _too_large(num_bytes, purpose, f"the {free / 2**20:.1f} MiB of memory that are free here")
    descriptor = _new_memory()
    try:
        os.ftruncate(descriptor, num_bytes)
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        os.close(descriptor)
        if error.errno != errno.ENOSPC:
            raise
        raise _too_large(num_bytes, purpose, "/dev/shm") from error
    return descriptor


def _too_large(num_bytes: int, purpose: str, place: str) -> SegmentTooLargeError:
    return SegmentTooLargeError(
        f"{purpose} needs {num_bytes / 2**20:.1f} MiB of shared memory and {place} cannot hold it: enlarge /dev/shm or the memory "
        f"limit (docker: --shm-size, --memory), or use fewer environments or a shorter rollout_length"
    )


def _new_memory() -> int:
    name = f"/jaxsrl-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        descriptor = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd
        posix_ipc.unlink_shared_memory(name)
    except (OSError, posix_ipc.Error):  # read-only, or without room for another name
        return os.memfd_create(name.strip("/"))
    return descriptor


def create(layout: SlotLayout) -> Segment:
    """Creates a zero-filled segment of the layout's size, mode 0600 and unlinked.

    Raises:
        SegmentTooLargeError: /dev/shm cannot hold it.
    """
    descriptor = reserve(layout.total_bytes, "the trajectory ring")
    run_id = secrets.token_bytes(RUN_ID_BYTES)
    segment = Segment(descriptor, layout, run_id)
    segment.buffer[8:16] = FORMAT_VERSION.to_bytes(8, "little")
    segment.buffer[16:48] = layout.layout_hash
    segment.buffer[48:64] = run_id
    segment.buffer[0:8] = MAGIC  # last: a header is valid only when it is complete
    return segment


def attach(descriptor: int, layout: SlotLayout, run_id: bytes) -> Segment:
    """Maps a segment that another process created.

    Raises:
        LayoutMismatchError: If it was created with another layout, format version or run.
    """
    segment = Segment(descriptor, layout, run_id)
    header = bytes(segment.buffer[:64])
    checks = [
        ("magic", header[0:8], MAGIC),
        ("format version", header[8:16], FORMAT_VERSION.to_bytes(8, "little")),
        ("layout hash", header[16:48], layout.layout_hash),
        ("run id", header[48:64], run_id),
    ]
    for what, got, expected in checks:
        if got != expected:
            segment.close()
            raise LayoutMismatchError(
                f"the segment's {what} is {got.hex()}, expected {expected.hex()}: it belongs to another run or to "
                f"another version of this package; start the pool and its workers from the same installation"
            )
    return segment
