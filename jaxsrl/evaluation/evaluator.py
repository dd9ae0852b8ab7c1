"""The evaluator of a run: a process that plays episodes with the versions that the run names, one after another."""

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from agents.api import AnyAgent, Mode
from envpool_bridge.envs.fingerprint import own_source
from envpool_bridge.envs.kept_modules import KeptModules, import_from
from envpool_bridge.envs.protocol import EnvSource
from envpool_bridge.envs.stages import at_stage
from envpool_bridge.envs.suites.registry import dumps_with_registrations
from envpool_bridge.errors import UserError
from envpool_bridge.supervisor.forkserver import STOP_SIGNALS, import_path
from jaxsrl.machine.bound_command import bound_command

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from jaxsrl.evaluation.evaluator import serve; serve()"
)
_NICE = 10  # an idle task of Linux would starve, and could not even end, while other programs use all cores
_CHUNK = 1 << 16
_BEAT_SECONDS = 1.0
_END_SECONDS = 30.0  # of a killed process, which may wait for a disk
_OWN_END_SECONDS = 5.0  # of a process that has closed its pipes: its own status says more than that of a kill
# The run needs the other cores.
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class EvaluatorDiedError(Exception):
    """Error of an evaluator that ended or that answers with an exception; the message has its traceback or last output."""


class Evaluator:
    """Owner of an evaluator process. It ends with this process, however that ends. Thread-safety: the main thread.

    Args:
        agent: Agent whose `act` plays; sent to the process.
        source: Source of the environments; sent to the process.
        output: file for what the process prints.
        modules: Modules that the agent and the source use, as `read_modules` returns them; sent to the process.

    Attributes:
        steps: steps of the task that the process has reported; it reports about every second.
        finished: episodes of the task that have ended by then.
    """

    def __init__(self, agent: AnyAgent, source: EnvSource, output: Path, modules: KeptModules) -> None:
        self._output = output
        self._answer = b""
        self.steps = self.finished = 0
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment, "bufsize": 0}
        code = modules, own_source(), dumps_with_registrations((agent, source))
        with _memory_file(pickle.dumps(code)) as file, open(output, "ab") as log:
            command = bound_command([sys.executable, "-P", "-c", _PROGRAM, str(file), import_path()])
            # Inherited: a signal to the group, which the run handles, must not end the process before `serve` ignores it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            try:
                self._process = subprocess.Popen(command, stderr=log, pass_fds=[file], **pipes)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._process.stdout is not None
        self._readable = select.poll()  # select.select rejects descriptors above 1,023
        self._readable.register(self._process.stdout, select.POLLIN)

    def send(self, task: dict[str, Any]) -> None:
        """Sends a task: the keyword arguments of `_play`. One at a time.

        Raises:
            EvaluatorDiedError: If the process has ended.
        """
        self.steps = self.finished = 0
        data, stream = (json.dumps(task) + "\n").encode(), self._process.stdin
        assert stream is not None
        try:
            while data:
                data = data[stream.write(data) or 0 :]
        except OSError as error:
            raise EvaluatorDiedError(self._describe_end()) from error

    def poll(self) -> dict[str, Any] | None:
        """Returns the answer to the task, or None while it plays.

        Raises:
            EvaluatorDiedError: If the process has ended, or the task failed.
        """
        while (answer := self._read_line()) is not None:
            if "steps" not in answer:
                break
            self.steps, self.finished = answer["steps"], answer["finished"]
        if answer is not None and "error" in answer:
            raise EvaluatorDiedError(answer["error"])
        return answer

    def _read_line(self) -> dict[str, Any] | None:
        output = self._process.stdout
        assert output is not None
        while b"\n" not in self._answer:
            has_ended = self._process.poll() is not None  # a process that an environment forked may hold the pipe open
            if not self._readable.poll(0):
                if has_ended:
                    raise EvaluatorDiedError(self._describe_end())
                return None
            chunk = os.read(output.fileno(), _CHUNK)
            if not chunk:
                raise EvaluatorDiedError(self._describe_end())
            self._answer += chunk
        line, _, self._answer = self._answer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends the process; idempotent."""
        self._kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _kill(self) -> int | None:
        """Ends the process, and returns its status; None if the system has not ended it in time."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_SECONDS)
        return None

    def _describe_end(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_OWN_END_SECONDS)
        status = self._kill()
        lines = self._output.read_text(errors="replace").splitlines()[-20:] if self._output.exists() else []
        return "\n".join([f"the evaluator ended with status {status}; its last output ({self._output}):", *lines])


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
    """Gives the descriptor of a file in memory with this content: a pipe would block until the process has imported jax."""
    file = os.memfd_create("jaxsrl-evaluator")
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.write(data)
        os.lseek(file, 0, os.SEEK_SET)
        yield file
    finally:
        os.close(file)


def serve() -> None:
    """Plays the tasks of standard input until it is closed: the program of the process."""
    os.nice(_NICE)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the run stops the process itself
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    answers = os.fdopen(os.dup(1), "w")
    acts: dict[str, Any] = {}  # by mode; compiled once for all versions
    os.dup2(2, 1)  # what environments print must not mix with answers
    with open(int(sys.argv[1]), "rb") as file:
        modules, own, played = pickle.load(file)
    import_from(modules)
    agent, source = pickle.loads(played)
    for line in sys.stdin:
        try:
            _validate_source(own)
            answer = _play(agent, source, acts, _Heartbeat(answers), **json.loads(line))
        except Exception:  # noqa: BLE001  reported to the run, which trains on
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _validate_source(own: str) -> None:
    if own_source() != own:
        raise UserError(
            "jaxsrl's own files have changed since the run started: stop the run, and start it again with one version"
        )


class _Heartbeat:
    """Callback for each step, which reports the steps of a task to the run every second."""

    def __init__(self, answers: IO[str]) -> None:
        self._answers, self._steps, self._written = answers, 0, 0.0

    def __call__(self, finished: int) -> None:
        """Counts a step."""
        self._steps += 1
        now = time.monotonic()
        if now - self._written >= _BEAT_SECONDS:
            self._written = now
            self._answers.write(json.dumps({"steps": self._steps, "finished": finished}) + "\n")
            self._answers.flush()


def _play(
    agent: AnyAgent,
    source: EnvSource,
    acts: dict[str, Any],
    on_step: Callable[[int], None],
    *,
    path: str,
    mode: str,
    stage: int | None,
    agents: str,
    **arguments: Any,
) -> dict[str, Any]:
    """Returns the JSON data of an evaluation of the version in a directory, at a stage.

    The return of an episode is that of the agents whose names match a pattern. `arguments` are those of `evaluate` and of
    `EpisodeOptions`.
    """
    import jax

    from jaxsrl.checkpoints.store import load_checkpoint
    from jaxsrl.evaluation.evaluate import EpisodeOptions, evaluate, make_evaluation_act
    from jaxsrl.training.run_state import restore_state

    started = time.perf_counter()
    arrays, _ = load_checkpoint(Path(path))
    params = restore_state(agent, jax.random.key(0), arrays).params
    if mode not in acts:
        acts[mode] = make_evaluation_act(agent, source, Mode(mode))
    limit, seeds = arguments.pop("max_episode_steps", None), tuple(arguments.pop("seeds", ()))
    options = EpisodeOptions(limit, seeds, acts[mode], on_step)
    report = evaluate(agent, params, at_stage(source, stage), mode=Mode(mode), options=options, **arguments)
    return {**report.of_agents(agents).to_json(), "seconds": time.perf_counter() - started}
