"""An engine whose hosts of commands are objects of this process, in place of a cluster; its tests decide what is lost."""

import contextlib

from jaxsrl.cluster.hosts.command_host import CommandHost
from jaxsrl.cluster.node_processes import NodeProcesses, SharedFile
from jaxsrl.cluster.protocol.engine import HostGoneError


class Answer:
    def __init__(self, value=None, error=None, has_ended=True):
        self.value, self.error, self.has_ended = value, error, has_ended


class Remote:
    def __init__(self, has_room):
        self.host, self.has_room, self.is_gone, self.methods = CommandHost(), has_room, False, []

    def call(self, group, method, *arguments):
        self.methods.append(method)
        if not self.has_room:
            return Answer(has_ended=False)
        if self.is_gone:
            return Answer(error=HostGoneError("the worker died"))
        try:
            return Answer(getattr(self.host, method)(*arguments))
        except Exception as error:  # noqa: BLE001  raised by get
            return Answer(error=error)

    def kill(self):
        self.is_gone = True
        process = self.host._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait(10)


class NodeEngine:
    """Spawns hosts at once, or never if there is no room."""

    def __init__(self, has_room=True):
        self.has_room, self.remotes = has_room, []
        self.losses = []  # errors of a lost cluster, each raised once

    def spawn(self):
        self.remotes.append(Remote(self.has_room))
        return self.remotes[-1]

    def check(self):
        if self.losses:
            raise self.losses.pop()

    def wait(self, calls, timeout_seconds):
        return [call for call in calls if call.has_ended]

    def get(self, call):
        if call.error is not None:
            raise call.error
        return call.value

    def processes(self, directory, show=lambda line: None, limits=None):
        shared = SharedFile(directory / ".nodes", "token")
        shared.path.write_text(shared.token)
        return NodeProcesses(self, self.spawn, shared, "1 core", show, limits)
