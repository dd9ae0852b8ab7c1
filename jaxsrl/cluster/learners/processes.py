"""The learner processes of a run: joining, messages, barriers and failures, through jax's own coordination service."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from typing import Any

import jax

from envpool_bridge.errors import EnvPoolError, UserError
from jaxsrl.cluster.learners.abort_handler import AbortHandler
from jaxsrl.cluster.learners.gate import Gate, Members, describe_gone, enter, validate_own_name
from jaxsrl.config.parts import AUTO, DistributedConfig
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.lifecycle import REQUEUE_STATUS, OtherProcessError, RequeueError, call_in_thread, error_status
from jaxsrl.machine.provenance import read_versions

_FAILED, _HEARD, _SHUTDOWN_SECONDS = "jaxsrl/failed/", "jaxsrl/heard/", 10
_LOOK_SECONDS, _REASON_SECONDS, _HEARD_SECONDS = 0.2, 3.0, 5.0
_members: Members = {}
_gates: list[Gate] = []


class LostLearnerError(RequeueError):
    """Another learner process died, did not come in time, or lost a part of the run; the newest checkpoint resumes. Status 75."""


class FailedLearnerError(OtherProcessError):
    """Another learner process raised an error of its own, which the same command may meet again. Exit status 1."""


class Processes:
    """The learner processes of a run, seen from one. Thread-safety: `send` and `received` from any thread, the rest from one.

    Attributes:
        process_id: Process id of this process.
        num_processes: Number of processes of the run.
        wait_seconds: longest wait for the others.
        is_main: whether this process writes the run directory.
        log: Function that writes a line to the log of the run.
    """

    def __init__(self, process_id: int, num_processes: int, wait_seconds: int, client: Any) -> None:
        self.process_id, self.num_processes, self.wait_seconds = process_id, num_processes, wait_seconds
        self.is_main = process_id == 0
        self._client, self._barriers = client, 0
        self._reason, self.log = "", _ignore
        self._abort = AbortHandler(self._describe_abort, REQUEUE_STATUS)

    def send(self, key: str, text: str) -> None:
        """Publishes a text for every process under `key`; it replaces an earlier one."""
        self._client.key_value_set(key, text, allow_overwrite=True)

    def received(self, prefix: str) -> dict[str, str]:
        """Returns the texts under keys that start with `prefix` (which ends with a slash), by the rest of the key."""
        return {key.removeprefix(prefix): text for key, text in self._client.key_value_dir_get(prefix)}

    def wait_for(self, key: str) -> str:
        """Waits for the text that a process publishes under `key`, and returns it.

        Raises:
            LostLearnerError: If that took too long.
            FailedLearnerError: If a process failed instead.
        """
        milliseconds = self.wait_seconds * 1000
        return self._waited(lambda: self._client.blocking_key_value_get(key, milliseconds), f"word of {key}")

    def wait_at_barrier(self) -> None:
        """Waits until every process is here.

        Raises:
            LostLearnerError: one did not come in time.
            FailedLearnerError: one failed.
        """
        self._barriers += 1
        milliseconds = self.wait_seconds * 1000
        # The service keeps what it knows of each name, so two names, in turn, serve for all barriers.
        name = f"jaxsrl/meet/{self._barriers % 2}"
        self._waited(lambda: self._client.wait_at_barrier(name, milliseconds), "the others")

    def raise_failed(self) -> None:
        """Raises the failure of another process, if one has published any.

        Raises:
            FailedLearnerError: one raised an error of its own.
            LostLearnerError: one lost a part of the run.
        """
        failures = [(json.loads(text), int(process)) for process, text in self.received(_FAILED).items()]
        # Errors that a process raised itself come first: they may be why another one lost a part of the run.
        for (resumes, said), process in sorted(failures, key=lambda each: (each[0][0], each[1])):
            if process != self.process_id:
                failure = f"learner process {process} of {self.num_processes} failed, and with it the run: {said}"
                if resumes:
                    raise LostLearnerError(
                        f"{failure}; the same command at every process resumes from the newest checkpoint"
                    )
                self._hear(failure)
                raise FailedLearnerError(failure)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Publishes failures inside to the other processes, and raises theirs here.

        Raises:
            FailedLearnerError: another process raised an error of its own.
            LostLearnerError: another process was lost, or lost a part of the run.
        """
        self._abort.install()
        try:
            yield
        except LostLearnerError:
            raise
        except FailedLearnerError:
            self._wait_until_heard()
            raise
        except BaseException as error:
            if _is_of_a_collective(error):
                self._raise_reason(error)
            self._publish(error)
            if isinstance(error, UserError):
                self._abort.remove()
            raise
        # Not where the run failed: before this process has ended, jax may yet notice what it has noticed already, and abort.
        self._abort.remove()

    def heed_aborts(self) -> None:
        """Handles abort() again after something else, such as Ray, has replaced the handler. Call it inside `together`."""
        self._abort.install()

    def leave(self) -> None:
        """Leaves the other processes in good order; afterwards this process computes alone.

        Raises:
            LostLearnerError: one did not come in time.
            FailedLearnerError: one failed.
        """
        self.wait_at_barrier()
        _members.clear()
        jax.distributed.shutdown()

    def _describe_abort(self) -> str:
        """Returns why jax ends this process, after it has written that to the log."""
        message = self._reason or _describe_lost()
        self.log(f"ends: {message}")
        return message

    def _publish(self, error: BaseException) -> None:
        """Sends the error that ends this process to the others; those of jax's aborts that still come say it too."""
        said, resumes = f"{type(error).__name__}: {_first_line(error)}", not isinstance(error, Exception)
        resumes = resumes or isinstance(error, RequeueError)  # neither a signal nor what was lost comes again
        if not resumes:
            self._reason, self._abort.status = said, error_status(error)
        with contextlib.suppress(Exception):  # process 0 may be gone; the error raised here matters more
            self.send(_FAILED + str(self.process_id), json.dumps([resumes, said]))
        if not resumes:
            self._wait_until_heard()

    def _hear(self, failure: str) -> None:
        """Reports to process 0 that this process knows why the run ends, and says it if jax aborts this process meanwhile."""
        self._reason, self._abort.status = failure, 1
        with contextlib.suppress(Exception):  # process 0 may be gone
            self.send(_HEARD + str(self.process_id), "")

    def _wait_until_heard(self) -> None:
        """Waits until every other process knows why the run ends, a few seconds at most: with process 0 all words are gone."""
        deadline, know = time.monotonic() + _HEARD_SECONDS, {str(self.process_id)}
        with contextlib.suppress(Exception):
            while self.is_main and len(know) < self.num_processes and time.monotonic() < deadline:
                know |= {*self.received(_HEARD), *self.received(_FAILED)}
                time.sleep(_LOOK_SECONDS)

    def _raise_reason(self, error: BaseException) -> None:
        """Raises the failure of another process after a collective failed; waits a moment for the message of that process."""
        deadline = time.monotonic() + _REASON_SECONDS
        while time.monotonic() < deadline:
            try:
                self.raise_failed()
            except FailedLearnerError as failure:
                self._wait_until_heard()
                raise failure from error
            except LostLearnerError as failure:
                raise failure from error
            except Exception:  # noqa: BLE001  process 0 is gone: no message will come
                break
            time.sleep(_LOOK_SECONDS)
        message = f"the connection to another learner process broke ({_first_line(error)}): {_describe_lost()}"
        self.log(f"ends: {message}")
        raise LostLearnerError(message) from error

    def _waited(self, call: Callable[[], Any], what: str) -> Any:
        """Returns the result of `call`, which runs in a thread so that signals and failures of others are noticed."""
        answer, looked = call_in_thread(call, "waits for learners"), time.monotonic()
        while wait([answer], _LOOK_SECONDS).not_done:
            if time.monotonic() - looked > 1.0:
                self.raise_failed()
                looked = time.monotonic()
        error = answer.exception()
        if error is None:
            return answer.result()
        self.raise_failed()
        raise LostLearnerError(
            f"process {self.process_id} of {self.num_processes} waited for {_late(error) or what}, {self.wait_seconds} s at most: "
            f"{_first_line(error)}; if one is only slow, use a larger --distributed.wait-seconds"
        ) from error


def join(
    config: DistributedConfig, num_cpu_devices: int = 0, experiment: Mapping[str, Any] | None = None
) -> Processes | None:
    """Joins the others, before jax has devices; None for a run of one process, or where this process has joined already.

    Args:
        config: where the others are.
        num_cpu_devices: devices to split this process's host into; 0 leaves it whole.
        experiment: options that are equal at every process, as JSON data.

    Raises:
        UserError: jax has its devices already, the scheduler's variables are not there, or process 0 rejects this process.
        RequeueError: the others did not come in time. (With a scheduler's variables jax then ends the process; our handler says so
            and exits with status 75.)
    """
    if not config.is_on:
        return None
    if num_cpu_devices:
        jax.config.update("jax_num_cpu_devices", num_cpu_devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    given: dict[str, Any] = {}
    if config.coordinator != AUTO:
        service = _enter(config, {"experiment": experiment, **read_versions()}) if config.num_processes > 1 else ""
        given = {
            "coordinator_address": service or config.coordinator,
            "coordinator_bind_address": service or config.coordinator,  # jax's own choice would be every interface
            "num_processes": config.num_processes,
            "process_id": config.process_id,
            "cluster_detection_method": "deactivate",
        }
    advice = (
        "start the same command at every process, each with its own --distributed.process-id, and see that process 0 can be "
        "reached at that address"
    )
    missing = (
        f"the learner processes did not all come to {config.coordinator} within {config.start_seconds} s: {advice}"
    )
    abort = AbortHandler(lambda: missing, REQUEUE_STATUS)
    abort.install()
    try:
        jax.distributed.initialize(
            **given,
            local_device_ids=list(config.local_devices) or None,
            initialization_timeout=config.start_seconds,
            heartbeat_timeout_seconds=config.lost_seconds,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the learner processes did not come together with run.distributed.coordinator {config.coordinator}: "
            f"{_first_line(error)}; {advice}"
        ) from error
    finally:
        abort.remove()
    return joined(config)


def _enter(config: DistributedConfig, identity: Mapping[str, Any]) -> str:
    """Waits until process 0 has admitted all processes; returns the address of jax's service."""
    validate_own_name(config)
    _members.clear()
    while _gates:
        _gates.pop().close()
    if config.process_id:
        service, members = enter(config, identity)
    else:
        _gates.append(gate := Gate(config, identity))
        service, members = gate.service, gate.wait()
    _members.update(members)
    return service


def _ignore(line: str) -> None:
    """Writes nothing, before there is a run directory."""


def _describe_lost() -> str:
    """Describes the loss of another learner process, with its machine where its connection has ended."""
    return (
        f"{describe_gone(_members) or 'another learner process of this run'} was killed or its host is gone (jax says above what "
        f"it saw); the same command at every process resumes from the newest checkpoint"
    )


def learner_processes(config: RunConfig) -> Processes | None:
    """Returns the learner processes of a run, joined if they were not; None for a run of one.

    Raises:
        UserError: If they did not come together.
    """
    if not config.distributed.is_on:
        return None
    processes = joined(config.distributed) or join(config.distributed, config.machine.num_cpu_devices)
    return processes if processes is not None and processes.num_processes > 1 else None


def joined(config: DistributedConfig) -> Processes | None:
    """Returns the processes that this one has joined; None if it has joined none."""
    if not config.is_on or not jax.distributed.is_initialized():
        return None
    from jax._src import distributed  # the service's keys and barriers have no public name in jax 0.10

    return Processes(jax.process_index(), jax.process_count(), config.wait_seconds, distributed.global_state.client)


def _is_of_a_collective(error: BaseException) -> bool:
    if isinstance(error, EnvPoolError):
        return False  # an environment may have lost a connection of its own; jax raises several classes, ValueError too
    text = str(error)
    return any(word in text for word in ("Gloo", "NCCL", "coordination service", "UNAVAILABLE", "Connection closed"))


def _late(error: BaseException) -> str:
    """Returns names the processes that jax's message says have not come to a barrier; "" if it names none."""
    numbers = re.findall(r"(\d+)$", str(error).partition("timed out task names")[2], re.MULTILINE)
    return f"process {', '.join(sorted(numbers, key=int))}" if numbers else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
