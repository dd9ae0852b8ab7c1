"""Processes that benchmarks start. Each has a deadline and ends with its benchmark, however that ends."""

import base64
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import cloudpickle

from envpool_bridge.errors import UserError
from envpool_bridge.supervisor.keeper import kill_on_parent_exit
from jaxsrl.machine.python_command import module_command

_SAMPLE_SECONDS = 0.25
_ANSWERS = """
import base64, os, sys, cloudpickle
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what environments print must not mix with answers
with cloudpickle.loads(base64.b64decode(sys.argv[1]))() as answer:
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(answer(float(line)), file=answers, flush=True)
"""
_START_SECONDS = 120.0
_ANSWER_SECONDS = 60.0


def run_module(
    module: str, settings: Mapping[str, Any], limit_seconds: float, sample: Callable[[int], None] = lambda pid: None
) -> Any:
    """Runs a module that calls `answer_settings` in a process of its own.

    Args:
        module: name to import.
        settings: keyword arguments of the module's function, as JSON data.
        limit_seconds: until the process is killed.
        sample: called with the process's number several times a second.

    Returns:
        The function's result, as JSON data.

    Raises:
        UserError: If the function raised it.
        RuntimeError: If the function failed otherwise, or took too long.
    """
    command = module_command(module, json.dumps(settings), str(os.getpid()))
    deadline = time.monotonic() + limit_seconds
    with killed_at_exit(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as process:
        while True:
            try:
                out, err = process.communicate(timeout=_SAMPLE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                sample(process.pid)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{module} {settings} failed: expected an end within {limit_seconds:.0f} s")
    if process.returncode == 2:
        raise UserError(err.decode().strip().splitlines()[-1].removeprefix("error: "))
    if process.returncode != 0:
        raise RuntimeError(f"{module} {settings} ended with exit status {process.returncode}:\n{err.decode()}")
    return json.loads(out.splitlines()[-1])


def answer_settings(function: Callable[..., Any]) -> None:
    """Calls `function` with the settings of `run_module` and prints its result as JSON; ends with the parent process."""
    from jaxsrl.machine.lifecycle import exit_on_user_error

    kill_on_parent_exit(int(sys.argv[2]))
    print(json.dumps(exit_on_user_error(function)(**json.loads(sys.argv[1]))))  # noqa: T201


def local_devices(environment: Mapping[str, str] | None = None) -> tuple[str, int, str]:
    """Returns platform, number and kind of jax's devices from a separate process, so that this one uses none of them."""
    code = "import jax; devices = jax.local_devices(); print(devices[0].platform, len(devices), devices[0].device_kind)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_START_SECONDS)
    platform, number, kind = done.stdout.splitlines()[-1].split(" ", 2)
    return platform, int(number), kind


class AnsweringProcess:
    """A process that prints a line when it is ready, and one line for each line of its standard input.

    The process ends with its standard input, so that it does not outlive a parent that is killed.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", name: str) -> None:
        self._process, self._name = process, name
        self._read = b""
        self._poll = select.poll()
        assert process.stdout is not None
        self._poll.register(process.stdout, select.POLLIN)

    def send(self, line: str) -> None:
        """Sends a line."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `receive` reports it
            self._process.stdin.write(line.encode() + b"\n")

    def receive(self, limit_seconds: float = _ANSWER_SECONDS) -> str:
        """Returns the next line of the process.

        Raises:
            RuntimeError: If the process ended, or no line came in time.
        """
        deadline = time.monotonic() + limit_seconds
        assert self._process.stdout is not None
        while b"\n" not in self._read:
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
                raise RuntimeError(f"{self._name} failed: expected an answer within {limit_seconds:.0f} s")
            read = os.read(self._process.stdout.fileno(), 65536)
            if not read:
                raise RuntimeError(f"{self._name} failed: its process ended; its own message is above")
            self._read += read
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def ask(self, line: str, work_seconds: float = 0.0) -> float:
        """Sends a line and returns the number that the process answers, after `work_seconds` of work or somewhat more."""
        self.send(line)
        return float(self.receive(work_seconds + _ANSWER_SECONDS))


@contextlib.contextmanager
def answering_processes(
    commands: Sequence[Sequence[str]], name: str, stderr: int | None = None
) -> Iterator[list[AnsweringProcess]]:
    """Starts processes, waits until all are ready, and kills them at the end.

    Args:
        commands: one for each process.
        name: subject of error messages.
        stderr: Standard error of the processes, as in Popen.
    """
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        started: list[AnsweringProcess] = []
        for command in commands:
            # Unbuffered: the pipe of a process that has ended can be closed.
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, bufsize=0)
            started.append(AnsweringProcess(stack.enter_context(killed_at_exit(process)), name))
        for process in started:
            process.receive(_START_SECONDS)
        yield started


@contextlib.contextmanager
def in_own_process(
    name: str, make: Callable[[], contextlib.AbstractContextManager[Callable[[float], float]]], count: int = 1
) -> Iterator[Callable[[float], float]]:
    """Runs a function in processes of its own, where it shares no state of the process with other contenders.

    Args:
        name: subject of error messages.
        make: anything that cloudpickle can send; returns a context that yields the function.
        count: number of processes.

    Yields:
        The function, summed over the processes. Its argument is the number of seconds that it works.
    """
    pickled = base64.b64encode(cloudpickle.dumps(make)).decode()
    with answering_processes([[sys.executable, "-P", "-c", _ANSWERS, pickled]] * count, name) as processes:
        yield partial(speed_of_all, processes)


def speed_of_all(processes: Sequence[AnsweringProcess], seconds: float) -> float:
    """Returns the sum of the speeds of processes that work for `seconds` at the same time."""
    for process in processes:
        process.send(str(seconds))
    return sum(float(process.receive(seconds + _ANSWER_SECONDS)) for process in processes)


@contextlib.contextmanager
def killed_at_exit(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """Kills a process at the exit of the context, and closes its pipes."""
    with process:
        try:
            yield process
        finally:
            process.kill()
