"""An engine whose hosts are threads of this process, in place of a cluster."""

import concurrent.futures
from concurrent.futures import Future, ThreadPoolExecutor

from jaxsrl.cluster.hosts.environment_host import EnvironmentHost
from jaxsrl.cluster.protocol.engine import HostGoneError
from jaxsrl.machine.resources import Node

CORES = 2  # of a host: a worker and a server


class ThreadHost:
    def __init__(self, number):
        self.number, self.gone, self.calls = number, False, []
        self.host = EnvironmentHost()
        self.threads = {"slots": ThreadPoolExecutor(1), "control": ThreadPoolExecutor(2)}

    def call(self, group, method, *arguments):
        if self.gone:
            future = Future()
            future.set_exception(RuntimeError("gone"))
        else:
            future = self.threads[group].submit(self.answer, method, arguments)
        future.host = self
        self.calls.append(method)
        return future

    def answer(self, method, arguments):
        value = getattr(self.host, method)(*arguments)
        if method != "next_slot":
            return value
        sequence, memory = value
        copied = memory.copy()  # as an engine does before the next call
        copied.flags.writeable = False
        return sequence, copied

    def kill(self):
        if not self.gone:
            self.gone = True
            self.host.close()  # before or after it has started
            for threads in self.threads.values():
                threads.shutdown(wait=True, cancel_futures=True)


class ThreadEngine:
    def __init__(self, nodes):
        self.alive = [Node(name, cores) for name, cores in nodes.items()]
        self.hosts = []
        self.silent = set()  # nodes of which nothing is heard
        self.losses = []  # errors of a lost cluster, each raised once
        self.rooms = {}  # the node on which room is reserved for a host

    def nodes(self):
        return tuple(self.alive)

    def reserved_node(self, kind, host):
        """Returns a host's node after a move, as a cluster moves reservations of dead nodes; the report may be delayed."""
        names = [one.name for one in self.alive]
        if self.rooms.get(host) not in names:
            taken = list(self.rooms.values())
            left = {one.name: one.num_cores - CORES * taken.count(one.name) for one in self.alive}
            self.rooms[host] = max((name for name in names if left[name] >= CORES), key=left.get, default=None)
        return self.rooms[host]

    def spawn(self, host, node):
        assert node in [one.name for one in self.alive]
        self.rooms[host] = node
        self.hosts.append(ThreadHost(host))
        self.hosts[-1].node = node
        return self.hosts[-1]

    def check(self):
        if self.losses:
            raise self.losses.pop()

    def put(self, value):
        value.flags.writeable = False
        return value

    def wait(self, calls, timeout_seconds):
        done, _ = concurrent.futures.wait(calls, timeout_seconds, concurrent.futures.FIRST_COMPLETED)
        return [call for call in calls if call in done]

    def get(self, call):
        if call.host.gone:
            raise HostGoneError("it was killed by the test", node_is_doubted=call.host.node in self.silent)
        return call.result(0)

    def kill_node(self, name):
        self.alive = [node for node in self.alive if node.name != name]
        for host in self.hosts:
            if host.node == name:
                host.kill()

    def close(self):
        for host in self.hosts:
            host.kill()
