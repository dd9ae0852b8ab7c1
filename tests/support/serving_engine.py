"""A thread engine with inference servers, which act in threads of this process; their links are futures."""

from concurrent.futures import Future, ThreadPoolExecutor

from jaxsrl.cluster.inference.server import ActionServer
from jaxsrl.cluster.protocol.bundles import SERVERS
from jaxsrl.cluster.protocol.engine import HostGoneError
from tests.support.thread_engine import ThreadEngine


class ThreadLink:
    def __init__(self, host):
        self.host = host

    def ask(self, request):
        request.flags.writeable = False
        answer = Future()
        self.host.asked += 1
        if self.host.asked == self.host.dies_at:
            self.host.kill()
        if self.host.gone:
            answer.set_exception(HostGoneError("it was killed by the test"))
            return answer

        def pass_on(done):
            if self.host.gone:
                answer.set_exception(HostGoneError("it was killed by the test"))
            elif done.exception() is not None:
                answer.set_exception(done.exception())
            else:
                block = done.result()
                block.flags.writeable = False
                answer.set_result(block)

        self.host.server.submit(request).add_done_callback(pass_on)
        return answer


class ThreadServer:
    def __init__(self, number, node):
        self.number, self.node, self.gone, self.calls = number, node, False, []
        self.asked, self.dies_at = 0, None
        self.server = ActionServer()
        self.threads = ThreadPoolExecutor(3)

    @property
    def link(self):
        return ThreadLink(self)

    def call(self, group, method, *arguments):
        self.calls.append(method)
        if self.gone:
            future = Future()
            future.set_exception(RuntimeError("gone"))
        elif method == "stats":
            future = self.server.stats()
        else:
            future = self.threads.submit(getattr(self.server, method), *arguments)
        future.host = self
        return future

    def kill(self):
        if not self.gone:
            self.gone = True
            self.server.close()
            self.threads.shutdown(wait=True, cancel_futures=True)


class ServingEngine(ThreadEngine):
    def __init__(self, nodes):
        super().__init__(nodes)
        self.servers = []
        self.gpus = []  # that each server was started with
        self.deaths = []  # how often each server that is started will have been asked when it dies

    def reserved_node(self, kind, index):
        if kind != SERVERS:
            return super().reserved_node(kind, index)
        return self.alive[index % len(self.alive)].name if self.alive else None

    def spawn_server(self, server, node, gpus):
        self.gpus.append(gpus)
        self.servers.append(ThreadServer(server, node))
        self.servers[-1].dies_at = self.deaths.pop(0) if self.deaths else None
        return self.servers[-1]

    def close(self):
        super().close()
        for server in self.servers:
            server.kill()
