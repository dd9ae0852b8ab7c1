"""A batched inference server for lanes of environment hosts on other nodes. It knows no engine.

Hosts ask for a lane at a time (`messages`), several at the same moment. One thread answers: lanes that may be acted for
with the same parameters share a call where the plan merges lanes, and have a call of fixed shape each where it does not. What a
policy remembers stays here from step to step; a client sends it along with its first request for a lane.
"""

import dataclasses
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from agents.api import Params
from envpool_bridge.errors import UserError
from jaxsrl.cluster.inference.act_batch import ActingCalls
from jaxsrl.cluster.inference.messages import ActingMessages, Request
from jaxsrl.cluster.protocol.published_params import VersionQueue
from jaxsrl.cluster.protocol.setup import HostSetup, load_setup
from jaxsrl.collect.inference.batching import group_requests
from jaxsrl.collect.params.store import ParamsStore
from jaxsrl.collect.slot_layout import agent_layout
from jaxsrl.machine.devices import Device
from jaxsrl.machine.process_usage import usage_totals
from jaxsrl.plan.fragment import Devices, Placement
from jaxsrl.plan.passes.place_inference import lanes_of_server

_WAIT_SECONDS = 0.2
_JOIN_SECONDS = 30.0
GATHER_SECONDS = 0.002
"""Longest that merged lanes wait for others, from when the first of them asked."""


class ServerClosedError(RuntimeError):
    """Error of a request whose server was closed, or whose client was replaced."""


@dataclasses.dataclass
class ServerStats:
    """Totals since the start of the server. Written by its thread alone.

    Attributes:
        requests: answered.
        calls: Calls of the agent.
        rows: acted for.
        busy_seconds: Seconds of calls, with their packing and reading.
        queued_seconds: sum of the waits of requests until their call started, parameters included.
        idle_seconds: Seconds that the thread waited for something to do.
    """

    requests: float = 0.0
    calls: float = 0.0
    rows: float = 0.0
    busy_seconds: float = 0.0
    queued_seconds: float = 0.0
    idle_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Asked:
    request: Request
    answer: "Future[np.ndarray]"
    at: float


class ActionServer:
    """One server. Thread-safety: `submit`, `publish` and `stats` from any thread and without waiting; a thread of its own acts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inbox: deque[tuple[np.ndarray, Future[np.ndarray], float]] = deque()
        self._questions: deque[Future[dict[str, float]]] = deque()
        self._versions = VersionQueue(self._changed)
        self._closed: BaseException | None = None  # why nothing is answered any more
        self._newest: Params = None
        self._thread: threading.Thread | None = None
        self._waiting: dict[int, _Asked] = {}
        self._lives: dict[int, int] = {}
        self._totals = ServerStats()

    def start(self, setup: bytes) -> None:
        """Receives the first parameters, compiles, and starts to answer.

        Args:
            setup: a HostSetup's bytes, whose replica is the server's number; its environments are not looked at.

        Raises:
            TimeoutError: If the first version did not come.
            UserError: If it is to act with a GPU, and jax sees none here.
        """
        made: HostSetup = load_setup(setup)
        config, plan = made.config, made.config.plan
        key = jax.random.wrap_key_data(jax.numpy.asarray(made.key_data), impl=made.key_impl)
        self._messages = ActingMessages(agent_layout(config.spec, plan.shape, config.agent))
        self._steps, self._merge = plan.shape.rollout_length, plan.merge_lanes
        lanes = lanes_of_server(plan, made.replica)
        # With merged lanes a worker's lanes take turns: more than one of each at a time is not to be waited for.
        self._enough = len(lanes) // plan.shape.lanes_per_worker
        self._store = ParamsStore(plan.max_policy_lag)
        device = acting_device(plan.inference.placement, made.replica)
        self._num_lanes = len(lanes)
        self._calls = ActingCalls(config, key, lanes, self._messages, device)
        self._versions.open(made, lambda version, params: self._take_version(version, jax.device_put(params, device)))
        self._versions.wait_for_first(self._raise_closed)
        self._calls.warm_up(self._newest)
        self._thread = threading.Thread(target=self._run, name="action server", daemon=True)
        self._thread.start()

    def publish(self, version: int, block: np.ndarray) -> None:
        """Accepts parameters that may act from now on; versions may come in any order. See `EnvironmentHost.publish`."""
        self._versions.receive(version, block)

    def submit(self, request: np.ndarray) -> "Future[np.ndarray]":
        """Returns the future answer to a request; a request for the same lane with a larger life replaces it.

        The answer raises ServerClosedError where there will be none, and what the agent raised.
        """
        answer: Future[np.ndarray] = Future()
        self._enqueue(answer, lambda: self._inbox.append((request, answer, time.perf_counter())))
        return answer

    def stats(self) -> "Future[dict[str, float]]":
        """Returns totals so far by name, as `ServerStats`, and what the process uses (`usage_totals`).

        The acting thread answers, so an answer proves that it runs.
        """
        answer: Future[dict[str, float]] = Future()
        self._enqueue(answer, lambda: self._questions.append(answer))
        return answer

    def close(self) -> None:
        """Ends it; idempotent. What was asked and not answered raises."""
        self._end(ServerClosedError("the inference server was closed"))
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _enqueue(self, answer: Future[Any], append: Callable[[], None]) -> None:
        with self._changed:
            if self._closed is None:
                append()
                self._changed.notify_all()
                return
        answer.set_exception(self._closed)

    def _end(self, why: BaseException) -> None:
        """Answers all open and later requests with an error."""
        with self._changed:
            self._closed = self._closed or why
            open_answers = [answer for _, answer, _ in self._inbox] + [one.answer for one in self._waiting.values()]
            open_answers += list(self._questions)
            self._inbox.clear()
            self._questions.clear()
            self._changed.notify_all()
        for answer in open_answers:
            if not answer.done():
                answer.set_exception(why)

    def _take_version(self, version: int, params: Params) -> None:
        self._newest = params
        self._store.publish(version, params)

    def _raise_closed(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _run(self) -> None:
        try:
            self._serve_until_closed()
        except BaseException as error:  # noqa: BLE001  raised in every thread that waits for an answer
            self._end(error)

    def _serve_until_closed(self) -> None:
        while True:
            started = time.perf_counter()
            with self._changed:
                self._changed.wait_for(self._has_work, _WAIT_SECONDS)
                if self._closed is not None:
                    return
                inbox, self._inbox = self._inbox, deque()
                questions, self._questions = self._questions, deque()
            self._totals.idle_seconds += time.perf_counter() - started
            for block, answer, at in inbox:
                self._take_in(_Asked(self._messages.read_request(block), answer, at))
            for question in questions:
                question.set_result({**dataclasses.asdict(self._totals), **usage_totals()})
            if self._waiting:
                self._gather_and_serve()

    def _has_work(self) -> bool:
        return self._closed is not None or bool(self._inbox or self._questions or self._actable())

    def _take_in(self, asked: _Asked) -> None:
        request = asked.request
        before = self._waiting.get(request.lane)
        if request.life < self._lives.get(request.lane, request.life):
            self._forget([asked])
            return
        if before is not None:
            self._forget([before])
        self._lives[request.lane] = request.life
        self._waiting[request.lane] = asked

    def _actable(self) -> list[_Asked]:
        """Requests whose parameters are there."""
        return [one for one in self._waiting.values() if self._store.may_act(one.request.step // self._steps)]

    def _gather_and_serve(self) -> None:
        """Serves what can be; where lanes are merged, the first waits a little for others."""
        ready = self._actable()
        if self._merge and ready and len(ready) < self._enough:
            left = min(one.at for one in ready) + GATHER_SECONDS - time.perf_counter()
            if left > 0.0:
                with self._changed:
                    self._changed.wait_for(lambda: self._inbox or self._closed is not None, left)
                    more = bool(self._inbox) or self._closed is not None
                if more:
                    return  # it is taken in first; the deadline stays
        begin = time.perf_counter()
        by_version: dict[int, tuple[Params, list[_Asked]]] = {}
        for one in ready:
            acting = self._store.acting(one.request.step // self._steps, 0.0)
            if acting is not None:
                by_version.setdefault(acting[0], (acting[1], []))[1].append(one)
        for version, (params, these) in by_version.items():
            self._serve(version, params, these, begin)
        self._totals.busy_seconds += time.perf_counter() - begin

    def _serve(self, version: int, params: Params, these: list[_Asked], begin: float) -> None:
        by_lane = {one.request.lane: one for one in these}
        for group in group_requests([one.request for one in these], self._num_lanes, self._merge):
            asked = [by_lane[request.lane] for request in group.requests]
            for one in asked:
                del self._waiting[one.request.lane]
            try:
                answers = self._calls.act(params, version, group.requests, self._merge)
            except Exception as error:  # noqa: BLE001  the client raises it with this traceback
                for one in asked:
                    one.answer.set_exception(error)
                continue
            for one, answer in zip(asked, answers, strict=True):
                self._totals.queued_seconds += begin - one.at
                one.answer.set_result(answer)
            self._totals.calls += 1
            self._totals.requests += len(asked)
            self._totals.rows += len(asked) * self._calls.rows_per_lane

    def _forget(self, asked: list[_Asked]) -> None:
        for one in asked:
            one.answer.set_exception(ServerClosedError("this answer is no longer wanted"))


def acting_device(placement: Placement, server: int) -> Device:
    """Returns the first device here, which is a GPU where the plan has servers act with one.

    Args:
        placement: Placement of the plan's inference.
        server: Number of the server, for the message.

    Raises:
        UserError: If the cluster has given the server a GPU, but jax sees none. It would act on the processor, many times slower
            than asked for, while the GPU is kept from others.
    """
    if not isinstance(placement, Devices) or placement.platform != "gpu":
        return jax.local_devices()[0]
    try:
        return jax.local_devices(backend="gpu")[0]
    except RuntimeError as error:
        given = ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS"))
        said = (str(error).strip().splitlines() or ["nothing"])[0]
        raise UserError(
            f"inference server {server} was given a GPU of its node (host {socket.gethostname()}; {given}), but jax sees none "
            f'there ({said}): install jax for it (pip install "jaxsrl[cuda]"), start Ray there without JAX_PLATFORMS and with no '
            f"more --num-gpus than there are, or have servers act on processors: --inference.platform cpu"
        ) from error
