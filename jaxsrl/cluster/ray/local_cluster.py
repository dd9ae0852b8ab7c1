"""Clusters to be connected to: one that is there, or a small one that is started here, on the loopback interface only."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import contextlib
import importlib
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from envpool_bridge.errors import EnvPoolError, UserError
from envpool_bridge.supervisor.forkserver import STOP_SIGNALS
from jaxsrl.cluster.ray.engine import import_ray
from jaxsrl.cluster.ray.local_nodes import ENVIRONMENT, RECONNECT
from jaxsrl.cluster.ray.token import make_token, read_again, token_of
from jaxsrl.machine.default_environment import default_environment
from jaxsrl.machine.lifecycle import Lifecycle
from jaxsrl.machine.python_command import module_command

_QUIET = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
_MIN_STORE_BYTES = 100 << 20
_ANSWER_SECONDS = 180.0
_END_SECONDS, _LOOK_SECONDS = 30.0, 0.1
_STARTS = 3  # Ray gives each node half a minute to start, whatever else the machine does
_LOG = logging.getLogger("jaxsrl.cluster")
_LONGEST_PLACE = 14
_ADDRESS = "address"  # file in the cluster's directory


class LocalCluster:
    """A small cluster that is started here (`ray_nodes`), with this process connected to it. One thread.

    Args:
        num_nodes: besides the head.
        cores_per_node: Cores that each node says it has.
        object_store_bytes: Object store bytes of shared memory for each; at least Ray's least.
        flag: Flag that asks for it, for messages.

    Raises:
        UserError: Ray is not installed, or this process is connected to a cluster already.
        EnvPoolError: If the cluster did not start in time.

    Attributes:
        directory: Directory of all its files; other processes of this user on this machine find the cluster by it
            (`joined_local_cluster`).
    """

    def __init__(
        self, num_nodes: int, cores_per_node: int, object_store_bytes: int = 0, flag: str = "--cluster.address"
    ) -> None:
        self._ray = import_ray(flag)
        if self._ray.is_initialized():
            raise UserError(f"{flag} local starts a cluster, but this process is connected to one: use {flag} auto")
        for attempt in range(_STARTS):
            self.directory = Path(tempfile.mkdtemp(prefix="jaxsrl-ray-", dir=_place()))  # other users cannot enter it
            self._token = make_token(self.directory)
            self._process = self._start(cores_per_node, max(object_store_bytes, _MIN_STORE_BYTES))
            try:
                self._connect_to(num_nodes)
            except EnvPoolError as error:
                self.close()
                if attempt == _STARTS - 1:
                    raise
                _LOG.warning("%s It is started again.", str(error).splitlines()[0])
            except BaseException:
                self.close()
                raise
            else:
                return

    def add_node(self, name: str, gpus: int = 0) -> None:
        """Starts one more node that offers this number of GPUs; returns when it has joined."""
        self._ask(f"add {name} {gpus}")

    def remove_node(self, name: str) -> None:
        """Kills a node, as a machine that loses its power."""
        self._ask(f"remove {name}")

    def close(self) -> None:
        """Ends every process of the cluster and removes its files; idempotent."""
        _disconnect()
        if self._process.stdin is None or self._process.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # the process has ended already
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the nodes die with it
            self._process.wait(_END_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
        deadline = time.monotonic() + _END_SECONDS
        while True:
            shutil.rmtree(self.directory, ignore_errors=True)
            if not self.directory.exists() or time.monotonic() > deadline:
                return
            time.sleep(_LOOK_SECONDS)  # workers that still end may write to it

    def _connect_to(self, num_nodes: int) -> None:
        """Connects this process once the head and the nodes have started."""
        address = self._answer()["address"]
        for number in range(num_nodes):
            self.add_node(f"node{number + 1}")
        (self.directory / _ADDRESS).write_text(address)
        _connect(address, self._token)

    def _start(self, cores: int, store_bytes: int) -> "subprocess.Popen[str]":
        command = module_command("jaxsrl.cluster.ray.local_nodes", str(self.directory), str(cores), str(store_bytes))
        path = os.pathsep.join([entry or os.getcwd() for entry in sys.path])
        log = self.directory / "nodes.log"
        with log.open("w") as output:
            self._log = log.open()  # open, so that it can be read when the files have been removed
            # A stop signal to our group, or to every process of a run, is ours to answer: the nodes are needed until the run has
            # saved. All processes of the cluster inherit the mask. Ray's own handlers would end them at an ignored SIGTERM.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    bufsize=1,
                    env={**os.environ, **self._token, "PYTHONPATH": path},
                    process_group=0,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _ask(self, line: str) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the process of the nodes has no input")
        with contextlib.suppress(BrokenPipeError):  # the process has ended: `_answer` shows its log
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        self._answer()

    def _answer(self) -> dict[str, str]:
        """Returns the next line that the process of the nodes writes."""
        if self._process.stdout is None:
            raise RuntimeError("the process of the nodes has no output")
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        line = self._process.stdout.readline() if poll.poll(_ANSWER_SECONDS * 1e3) else ""
        if not line:
            log = self._log.read()[-2000:]
            raise EnvPoolError(
                f"the local Ray cluster did not start (exit status {self._process.poll()}, {_ANSWER_SECONDS:g} s at most for a "
                f"node): is the machine too busy?\nWhat it said:\n{log}"
            )
        return json.loads(line)


def _place() -> str:
    """Returns the directory of temporary files, or /tmp if Ray's sockets below it would have names above 107 characters."""
    place = tempfile.gettempdir()
    return place if len(place) <= _LONGEST_PLACE else "/tmp"


@contextlib.contextmanager
def joined_local_cluster(directory: str) -> Iterator[None]:
    """Connects this process, inside, to the cluster that another process of this user has started on this machine.

    Args:
        directory: Directory of the cluster. It must belong to this user alone, because any process can send its name.

    Raises:
        UserError: If it is not, or this process is connected to a cluster already.
    """
    ray, place = import_ray(), Path(directory)
    if not place.is_dir() or place.is_symlink() or place.stat().st_uid != os.getuid() or place.stat().st_mode & 0o077:
        raise UserError(
            f"process 0 sent a Ray cluster in {directory}, which other users can write to: run all learner "
            f"processes as one user on one machine, or use --cluster.address auto"
        )
    if ray.is_initialized():
        raise UserError(
            "--cluster.address local, but this process is connected to a cluster: use --cluster.address auto"
        )
    _connect((place / _ADDRESS).read_text(), token_of(place))
    try:
        yield
    finally:
        _disconnect()


def _connect(address: str, token: dict[str, str]) -> None:
    """Connects this process to a cluster that was started here."""
    with default_environment({**ENVIRONMENT, **token}), _sigterm_as_it_is():
        read_again()
        # A Ray that was imported before has read its switch already.
        setattr(importlib.import_module("ray._private.ray_constants"), "ENABLE_RAY_CLUSTER", False)  # noqa: B010
        import_ray().init(address=address, **_QUIET)


def _disconnect() -> None:
    """Disconnects this process. Without a head that may take for ever: this process then ends without the rest of it."""
    disconnecting = Lifecycle()
    disconnecting.start_thread("disconnects from ray", import_ray().shutdown)
    with contextlib.suppress(TimeoutError):
        disconnecting.join(_END_SECONDS)
    read_again()  # the next connection needs another token


@contextlib.contextmanager
def joined_cluster(flag: str = "--cluster.address") -> Iterator[None]:
    """Connects this process, inside, to the running Ray cluster: that of its own connection, or Ray's "auto".

    Args:
        flag: Flag that asks for it, for messages.

    Raises:
        UserError: Ray is not installed, or there is no cluster.
    """
    values = {name: ENVIRONMENT[name] for name in ("RAY_USAGE_STATS_ENABLED", RECONNECT)}
    with default_environment(values), _sigterm_as_it_is():
        ray = import_ray(flag)
        is_ours = not ray.is_initialized()  # else a notebook's, say, which stays connected
        try:
            if is_ours:
                ray.init(address="auto", **_QUIET)
        except (ConnectionError, RuntimeError) as error:
            raise UserError(
                f"{flag} auto found no Ray cluster to join ({error}): start one (ray start --head, and ray start "
                f"--address on the other machines), set RAY_ADDRESS, or use {flag} local"
            ) from error
    try:
        yield
    finally:
        if is_ours:
            _disconnect()


@contextlib.contextmanager
def _sigterm_as_it_is() -> Iterator[None]:
    """Keeps the handler of SIGTERM, inside, which Ray replaces by an immediate exit."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
