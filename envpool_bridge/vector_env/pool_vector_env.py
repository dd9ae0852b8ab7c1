"""PoolVectorEnv: environments in worker processes behind the interface of Gymnasium's AsyncVectorEnv."""

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

import cloudpickle
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from envpool_bridge.envs.env_functions import EnvFunction, call_attribute
from envpool_bridge.envs.vector_requests import ApplyRequest, MaskedReset, ObjectStep, RowReport
from envpool_bridge.envs.vector_rows import VectorRowsSource
from envpool_bridge.errors import EnvPoolError, UserError, WaitTimeoutError
from envpool_bridge.spec.tree import take
from envpool_bridge.vector_env import calls
from envpool_bridge.vector_env.arguments import (
    EnvFn,
    array_spec,
    batch_observation_space,
    divide_rows,
    list_env_fns,
    row_spec,
    validate_no_custom_space,
    without_bounds,
)
from envpool_bridge.vector_env.functions import pickle_calls, pickle_setters
from envpool_bridge.vector_env.lanes import Lanes
from envpool_bridge.vector_env.results import Report, add_finals, raise_failure, select_infos, stack_infos

_TIMEOUT_SECONDS = 60.0
_Pending = Literal[AsyncState.WAITING_RESET, AsyncState.WAITING_STEP, AsyncState.WAITING_CALL]
_ALLOWED_BEFORE_RECV = frozenset({"send", "recv", "reset_async"})
_NOT_CALLED = frozenset({"reset", "step", "close"})

Step = tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class PoolVectorEnv(VectorEnv):
    """Environments in worker processes, in place of Gymnasium's AsyncVectorEnv, with EnvPool's `send` and `recv`.

    Use it only from the thread that made it. The constructor makes one environment to inspect its spaces, then starts
    the workers. An exception of an environment is raised with its own class, from a WorkerError that names the row and
    holds the worker's traceback. Afterwards the environments can be reset.

    Values of Text, Sequence, Graph, OneOf and other spaces without a fixed array are pickled at every step, which is
    slower than shared memory.

    Args:
        env_fns: one function for each environment, or one function for all; anything that cloudpickle can send to workers.
        num_envs: number of environments of one function.
        shared_memory: False also accepts observations of custom spaces, as objects.
        copy: False returns observations that change after the next step where no conversion is needed.
        context: accepted for AsyncVectorEnv's callers; workers always come from a fork server of the pool.
        daemon: accepted likewise; workers always end with their parent, and may have children.
        worker: must be None; wrap the environments instead.
        observation_mode: "same", "different" (spaces of equal shape and dtype), or (batched space, single space).
        autoreset_mode: reset at the step after an episode's end, in its last step, or by `reset` alone.
        max_concurrency: largest number of environments that step at the same time, a limit of `num_workers`.
        num_workers: number of processes. If None, the number of cores, or the largest smaller number that divides
            `num_envs`.
        lanes_per_worker: 2 or more make `send` and `recv` overlap; `step` always waits for all lanes.
        strict: True raises BadEnvOutputError for output that is not as the spaces declare it. False accepts what
            AsyncVectorEnv accepts, and counts it in `infos["repaired"]`.
        timeout_seconds: time limit of a step, a reset or a call. The constructor's limit for starting the workers is
            `SupervisorOptions.start_timeout_seconds`.

    Raises:
        UserError: sizes that do not divide, or an environment that cannot be sent to workers.
        RuntimeError: environments whose spaces cannot be batched.
    """

    def __init__(  # noqa: PLR0913  the arguments of AsyncVectorEnv
        self,
        env_fns: EnvFn | Iterable[EnvFn],
        num_envs: int | None = None,
        *,
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: Any = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        num_workers: int | None = None,
        lanes_per_worker: int = 1,
        strict: bool = False,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        del context, daemon
        if worker is not None:
            raise UserError("worker functions are AsyncVectorEnv's own: pass worker=None, and wrap the environments")
        functions = list_env_fns(env_fns, num_envs)
        self.num_envs, self.copy = len(functions), copy
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        shape = divide_rows(self.num_envs, num_workers, lanes_per_worker, max_concurrency)
        source = self._make_source(functions, observation_mode, shared_memory, strict)
        self._lanes = Lanes(source, shape, timeout_seconds)
        self._state = AsyncState.DEFAULT
        self._is_late = False  # the caller knows of a pending operation that took too long
        self._sent: list[int] = []  # lanes whose results `recv` has not returned, in the order of their sending
        # Runs when this object is collected, and before the interpreter exits.
        self._finalizer = weakref.finalize(self, self._lanes.close)
        try:
            raise_failure(self._lanes.start())
        except BaseException:
            self.close(terminate=True)
            raise

    def _make_source(self, functions: tuple[EnvFn, ...], mode: Any, shares: bool, strict: bool) -> VectorRowsSource:
        """Sets the attributes of a VectorEnv from one environment; returns the source of the rows."""
        first = functions[0]()
        try:
            self.spec = first.spec if functions.count(functions[0]) == len(functions) else None
            self.render_mode = first.render_mode
            self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
            name = first.spec.id if first.spec is not None else type(first.unwrapped).__name__
            observation, action = first.observation_space, first.action_space
        finally:
            first.close()
        self.single_action_space = action
        self.action_space = batch_space(action, self.num_envs)
        self.single_observation_space, self.observation_space = batch_observation_space(mode, functions, observation)
        if shares:
            validate_no_custom_space(self.single_observation_space)
        observed = array_spec("observation", self.single_observation_space, name)
        observed = observed if observed is None or mode == "same" else without_bounds(observed)
        acted = array_spec("action", action, name)
        self._has_objects, self._acts_by_objects = observed is None, acted is None
        spec = row_spec(name, observed, acted)
        self._actions = calls.ActionArrays(spec.action, self.action_space)
        spaces = (self.single_observation_space, action)
        objects = observed is None, acted is None
        source = VectorRowsSource(functions, spec, spaces, mode == "same", self.autoreset_mode, *objects, strict)
        self._shares_finals = source.shares_final_observations
        return source

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Seed of each environment."""
        return self.get_attr("np_random_seed")

    @property
    def np_random(self) -> tuple[np.random.Generator, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Copy of the generator of each environment."""
        return self.get_attr("np_random")

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes; an int seeds environment i with `seed + i`.

        Args:
            seed: seeds of the environments.
            options: passed to the environments; the item "reset_mask", [num_envs] bool, selects those to reset.
        """
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Sends a reset; `reset_wait` returns its results."""
        self._require_open()
        seeds, (mask, options) = calls.spread_seeds(seed, self.num_envs), calls.split_mask(options, self.num_envs)
        self._require_idle("a masked reset" if mask else "reset_async")  # it would lose the results of other rows
        self._send_reset(seeds, mask, (cloudpickle.dumps(options),) * self.num_envs)

    def _send_reset(self, seeds: list[int | None], mask: tuple[bool, ...], options: tuple[bytes, ...]) -> None:
        self._lanes.request(
            lambda rows: MaskedReset(tuple(seeds[rows]), mask=mask[rows], pickled_options=options[rows])
        )
        self._state, self._sent = AsyncState.WAITING_RESET, []  # it replaces results that `recv` has not returned

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns observations and infos of the started reset.

        Raises:
            WaitTimeoutError: If the environments took longer than `timeout` seconds; wait again, or close.
        """
        reports = self._wait_for(AsyncState.WAITING_RESET, timeout)
        infos = self._infos(self._lanes.all, reports, np.zeros(0, np.bool_))
        return self._observations(self._lanes.all, reports), infos

    def step_async(self, actions: Any) -> None:
        """Sends actions; `step_wait` returns the results."""
        self._require_open()
        self._require_idle("step_async")
        if self._acts_by_objects:
            each = calls.action_objects(self.action_space, actions, self.num_envs)
            self._lanes.request(lambda rows: ObjectStep(actions=cloudpickle.dumps(each[rows])))
        else:
            arrays = self._actions.convert(actions, self.num_envs)
            for lane, rows in zip(self._lanes.all, self._lanes.rows, strict=True):
                self._lanes.act(lane, take(arrays, rows))
        self._state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> Step:
        """Returns observations, rewards (float64), terminations, truncations and infos of the started step.

        Raises:
            WaitTimeoutError: If the environments took longer than `timeout` seconds; the step continues.
        """
        reports = self._wait_for(AsyncState.WAITING_STEP, timeout)
        return self._results(self._lanes.all, reports)

    def step(self, actions: Any) -> Step:
        """Steps every environment once."""
        self.step_async(actions)
        return self.step_wait()

    def send(self, actions: Any, env_id: np.ndarray | None = None) -> None:
        """Sends actions to some environments, like EnvPool's send.

        Args:
            actions: one for each entry of `env_id`.
            env_id: whole lanes, as `recv` returned them in `info["env_id"]`; None means all.
        """
        self._require_open()
        self._require_idle("send")
        if self._acts_by_objects:
            raise UserError(f"send needs actions that are arrays, got {self.single_action_space}: use step")
        env_id = np.arange(self.num_envs) if env_id is None else np.asarray(env_id)
        arrays = self._actions.convert(actions, len(env_id))
        lanes = self._lanes.lanes_of(env_id)
        if not set(lanes).isdisjoint(self._sent):
            raise AlreadyPendingCallError("send needs a recv before it: these environments are in a step", "send")
        order = np.argsort(env_id)
        arrays, env_id = take(arrays, order), env_id[order]
        for lane in lanes:
            rows = self._lanes.rows[lane]
            self._lanes.act(lane, take(arrays, (env_id >= rows.start) & (env_id < rows.stop)))
            self._sent.append(lane)

    def async_reset(self, seed: int | Sequence[int | None] | None = None) -> None:
        """Starts new episodes in all environments; `recv` returns their observations, like EnvPool's async_reset."""
        self.reset_async(seed)
        self._state, self._sent = AsyncState.DEFAULT, list(self._lanes.all)

    def recv(self) -> Step:
        """Returns the results of one lane, the first that finishes, with its rows in `info["env_id"]`, like EnvPool's recv.

        Of several lanes that have finished, it takes the one whose actions were sent first.

        Raises:
            NoAsyncCallError: every result has been returned.
            WaitTimeoutError: If no lane finished in time.
        """
        self._require_open()
        self._require_idle("recv")
        if not self._sent:
            raise NoAsyncCallError("recv needs a send or an async_reset before it", "recv")
        lanes = [self._lanes.wait_any(self._sent)]
        self._sent.remove(lanes[0])
        reports = self._lanes.reports(lanes)
        raise_failure(reports)
        observations, rewards, terminations, truncations, infos = self._results(lanes, reports)
        infos = select_infos(infos, slice(len(reports)))  # Gymnasium makes arrays of all environments
        for own in ("env_id", "_env_id"):  # of the environments
            infos.pop(own, None)
        return observations, rewards, terminations, truncations, {"env_id": self._lanes.row_ids(lanes), **infos}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every environment, or returns an attribute of each that is not callable."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Sends a call; `call_wait` returns the results."""
        self._require_open()
        self._require_idle("call_async")
        if name in _NOT_CALLED:
            raise UserError(f"{name!r} cannot be called by name: use the method {name} of the vector environment")
        pickled = cloudpickle.dumps(partial(call_attribute, name, args, kwargs))
        self._apply_async(f"call of {name!r}", [pickled] * self.num_envs)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Returns the results of the started call, one for each environment.

        Raises:
            WaitTimeoutError: If the environments took longer than `timeout` seconds; wait again, or close.
        """
        reports = self._wait_for(AsyncState.WAITING_CALL, timeout)
        results = [report.result for report in reports if isinstance(report, RowReport)]
        return tuple(cloudpickle.loads(result) if result else None for result in results)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of each environment; calls it if it is a method."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment.

        Args:
            name: Name of the attribute; a wrapper that defines it receives it.
            values: list or tuple of one value for each environment, or one value for all; each receives a copy.
        """
        self._require_open()
        setters = pickle_setters(name, values, self.num_envs)
        self._require_idle("set_attr")
        self._apply_async(f"set_attr of {name!r}", setters)
        self.call_wait()

    def apply(self, function: EnvFunction, indices: Iterable[int] | None = None) -> tuple[Any, ...]:
        """Calls a function with environments, each in its worker, and returns the results.

        Args:
            function: receives one environment; anything that cloudpickle can send to workers. Each has its own copy.
            indices: Indices of the environments, all by default; the results are in this order. A repeated one is another call.

        Raises:
            UserError: If no environment has an index.
        """
        self._require_open()
        self._require_idle("apply")
        chosen = [int(index) for index in (range(self.num_envs) if indices is None else indices)]
        self._apply_async(f"apply of {function!r}", pickle_calls(function, chosen, self.num_envs))
        results = [iter(each or ()) for each in self.call_wait()]
        return tuple(next(results[index]) for index in chosen)

    def _apply_async(self, what: str, functions: Sequence[bytes]) -> None:
        self._lanes.request(lambda rows: ApplyRequest(what=what, functions=tuple(functions[rows])))
        self._state = AsyncState.WAITING_CALL

    def render(self) -> tuple[Any, ...] | None:
        """Returns the frame of each environment, in the `render_mode` of the environments."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Stops the workers; called by `close`.

        Args:
            timeout: seconds that workers have to finish their step and close their environments; a few by default. Then
                they are killed.
            terminate: kills the workers at once.
        """
        self._lanes.close(0.0 if terminate else timeout)
        if self._state is not AsyncState.DEFAULT and not self._is_late:
            logger.warn(
                f"Calling `close` while waiting for a pending call to `{self._state.value}` to complete. Its results are lost"
            )

    def _wait_for(self, state: _Pending, timeout: float | None) -> list[Report]:
        """Waits for the pending operation of this kind, and returns the rows' reports."""
        self._require_open()
        if self._state is not state:
            raise calls.not_started(state.value)
        self._is_late = True
        try:
            self._lanes.wait(timeout)
        except EnvPoolError as error:  # all but a timeout end the operation, and later calls raise them too
            self._state = self._state if isinstance(error, WaitTimeoutError) else AsyncState.DEFAULT
            raise
        self._state, self._is_late = AsyncState.DEFAULT, False
        reports = self._lanes.reports(self._lanes.all)
        raise_failure(reports)
        return reports

    def _results(self, lanes: Sequence[int], reports: list[Report]) -> Step:
        observations = self._observations(lanes, reports)
        rewards, terminations, truncations = self._lanes.results(lanes)
        infos = self._infos(lanes, reports, terminations | truncations)
        return observations, rewards, terminations, truncations, infos

    def _infos(self, lanes: Sequence[int], reports: list[Report], ends: np.ndarray) -> dict[str, Any]:
        """Returns the infos of these lanes.

        Args:
            lanes: Lanes in order.
            reports: one for each of their rows.
            ends: whether the episode of each of these rows ended, [N] bool.
        """
        infos = stack_infos(self._add_info, reports)
        if self._shares_finals and len(ended := ends.nonzero()[0]):
            add_finals(infos, self._lanes.final_observations(lanes, ended), ended, self.num_envs)
        return infos

    def _observations(self, lanes: Sequence[int], reports: list[Report]) -> Any:
        if not self._has_objects:
            return self._lanes.observations(lanes, self.copy)
        each = [report.observation for report in reports if isinstance(report, RowReport)]
        space = self.single_observation_space
        return concatenate(space, each, create_empty_array(space, len(each), fn=np.zeros))

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the vector environment is closed: make a new one")

    def _require_idle(self, name: str) -> None:
        if self._sent and name not in _ALLOWED_BEFORE_RECV:
            raise AlreadyPendingCallError(f"{name} needs a recv of all results before it", "send")
        if self._state is not AsyncState.DEFAULT:
            raise calls.still_pending(name, self._state.value)
