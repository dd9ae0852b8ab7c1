"""A thread engine with replay on a node: a ReplayHost behind thread pools, in place of Ray's groups."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from jaxsrl.cluster.protocol.bundles import REPLAY
from jaxsrl.cluster.protocol.engine import HostGoneError, SlotLost
from jaxsrl.cluster.replay.host import ReplayHost
from tests.support.thread_engine import ThreadEngine


class ThreadReplay:
    def __init__(self, node, slots):
        self.node, self.gone, self.calls, self.silent = node, False, [], False
        self.open_samples = self.most_open_samples = 0
        self.replay = ReplayHost()
        self.threads = {
            name: ThreadPoolExecutor(size) for name, size in {"slots": slots, "samples": 1, "control": 4}.items()
        }

    def call(self, group, method, *arguments):
        if method == "sample":
            self.open_samples += 1
            self.most_open_samples = max(self.most_open_samples, self.open_samples)
        return self.begin(group, method, getattr(self.replay, method), arguments)

    def fetch(self, host, incarnation, slot):
        return self.begin("slots", "fetch", self.staged, (host, incarnation, slot))

    def staged(self, host, incarnation, slot):
        try:
            sequence, memory = slot.result()
        except Exception:
            if slot.host.gone:
                return SlotLost("its host was killed by the test", False)
            raise
        if slot.host.gone:
            return SlotLost("its host was killed by the test", False)
        return self.replay.stage(host, incarnation, sequence, memory)

    def begin(self, group, method, function, arguments):
        self.calls.append(method)
        answers = not (self.gone or self.silent)
        future = self.threads[group].submit(self.answer, function, arguments) if answers else Future()
        future.host = self
        future.method = method
        if self.gone:
            future.set_exception(RuntimeError("gone"))
        return future

    def answer(self, function, arguments):
        value = function(*arguments)
        for array in value if isinstance(value, tuple) else [value]:
            if isinstance(array, np.ndarray):
                array.flags.writeable = False  # as what an engine hands over
        return value

    def kill(self):
        if not self.gone:
            self.gone = True
            self.replay.close()
            for threads in self.threads.values():
                threads.shutdown(wait=False, cancel_futures=True)


class ReplayEngine(ThreadEngine):
    def __init__(self, nodes):
        super().__init__(nodes)
        self.replays = []

    def reserved_node(self, kind, index):
        return self.alive[-1].name if kind == REPLAY else super().reserved_node(kind, index)

    def spawn_replay(self, node, slots):
        self.replays.append(ThreadReplay(node, slots))
        return self.replays[-1]

    def get(self, call):
        if call.host.gone:
            raise HostGoneError("it was killed by the test", node_is_doubted=call.host.node in self.silent)
        value = call.result(0)
        if getattr(call, "method", "") == "sample":
            call.host.open_samples -= 1
        return value

    def close(self):
        super().close()
        for replay in self.replays:
            replay.kill()
