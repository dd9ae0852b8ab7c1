"""Descriptions of a process's exit: the signal or status, its usual cause, and memory figures."""

import dataclasses
import resource
import signal
from pathlib import Path

_CAUSES = {
    signal.SIGKILL: "killed from outside",
    signal.SIGSEGV: "a crash in native code of the environment",
    signal.SIGILL: "native code of the environment contains an instruction that this processor lacks",
    signal.SIGFPE: "an arithmetic error in native code of the environment",
    signal.SIGABRT: "native code of the environment aborted",
    signal.SIGBUS: "a memory page could not be provided: /dev/shm or the memory limit is too small, or a file was cut",
    signal.SIGTERM: "terminated from outside",
}
_MIB = 2**20
_PAGE_BYTES = resource.getpagesize()


@dataclasses.dataclass(frozen=True)
class ExitContext:
    """Known facts about a process at its end.

    Attributes:
        in_step: whether it was in the middle of a step; None if unknown.
        rss_bytes: Resident memory of the process at the last check; None if there was none.
        oom_kills: number of processes of this control group that the kernel killed for lack of memory during its life;
            None if the kernel does not report it.
        limit_bytes: memory limit of the control group; None without a limit.
    """

    in_step: bool | None = None
    rss_bytes: int | None = None
    oom_kills: int | None = None
    limit_bytes: int | None = None


def describe_exit(status: int, circumstances: ExitContext | None = None) -> str:
    """Describes an exit status.

    Args:
        status: Status, as `subprocess` reports it: the negated number of the signal that ended the process, or its exit status.
        circumstances: facts about the exit.
    """
    known = circumstances or ExitContext()
    when = {True: ", in the middle of a step", False: ", between two steps", None: ""}[known.in_step]
    if status >= 0:
        how = f"exit status {status}{when}: something in the environment called exit"
        return f"{how}{_memory(known)}" if status else f"{how}, although no stop was requested"
    number = -status
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}{when}"
    cause = _kill_cause(known) if number == signal.SIGKILL else _CAUSES.get(signal.Signals(number))
    return f"{name}{when}: {cause}" if cause else f"{name}{when}"


def _kill_cause(known: ExitContext) -> str:
    memory = _memory(known)
    if known.oom_kills:
        return f"killed by the kernel for lack of memory{memory}: give the run more memory, or use fewer environments"
    if known.oom_kills == 0:
        return f"{_CAUSES[signal.SIGKILL]}, and not by this control group's memory limit{memory}"
    return f"{_CAUSES[signal.SIGKILL]}, often by the kernel for lack of memory (see dmesg){memory}"


def _memory(known: ExitContext) -> str:
    if known.rss_bytes is None:
        return ""
    limit = "" if known.limit_bytes is None else f" of {known.limit_bytes / _MIB:.0f} MiB"
    return f" (resident memory when last seen: {known.rss_bytes / _MIB:.0f} MiB{limit})"


def resident_bytes(pid: int) -> int | None:
    """Returns the resident memory of a process, or None after its end."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    pages = int(fields[1])
    return pages * _PAGE_BYTES if pages else None  # a zombie has none


class CgroupMemory:
    """Memory limits and events of this process's control group (version 2), as far as the kernel reports them.

    Args:
        directory: Directory of the control group; this process's own if None.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = _own_group() if directory is None else directory

    def oom_kills(self) -> int | None:
        """Returns the number of processes of the group that were killed for lack of memory; None if unknown."""
        if self._directory is None:
            return None
        try:
            lines = (self._directory / "memory.events").read_text().splitlines()
        except OSError:
            return None
        counts = dict(line.split() for line in lines)
        return int(counts["oom_kill"]) if "oom_kill" in counts else None

    def limit_bytes(self) -> int | None:
        """Returns the memory limit of the group; None without a limit."""
        if self._directory is None:
            return None
        try:
            text = (self._directory / "memory.max").read_text().strip()
        except OSError:
            return None
        return None if text == "max" else int(text)


def _own_group() -> Path | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    return Path("/sys/fs/cgroup") / paths[0].lstrip("/") if paths else None
