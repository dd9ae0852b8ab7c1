"""Steps of a worker's rows that are all begun before the first is waited for: for environments that offer a step's two halves.

An environment that waits for something outside (a game's server, a robot) may offer, beside `step`, `step_async(action) -> None`
and `step_wait() -> (observation, reward, terminated, truncated, info)`, the names that vector environments have. The rows of a
worker then wait at the same time, without a thread each: where threads cost a wake-up a row, this costs few for all of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium

from envpool_bridge.errors import WorkerError


class Halves(NamedTuple):
    """A step in two calls.

    Attributes:
        begin: the environment's `step_async`.
        wait: the environment's `step_wait`.
    """

    begin: Callable[[Any], Any]
    wait: Callable[[], Any]


def halves_of(env: gymnasium.Env) -> Halves | None:
    """The two halves of the environment's step; None if it has none that give what its `step` gives.

    A wrapper, or a class that derives from the one with the halves, may define `step` alone: what it adds would be lost if the
    inner halves were called. So both must be defined where `step` is, or in a class that derives from it. A class, or an
    object, that sets one of them to None does without.
    """
    begin, wait = getattr(env, "step_async", None), getattr(env, "step_wait", None)
    if "step" in vars(env) or not (callable(begin) and callable(wait)):
        return None
    kinds = type(env).__mro__
    step, *halves = (
        next((place for place, kind in enumerate(kinds) if name in vars(kind)), len(kinds))
        for name in ("step", "step_async", "step_wait")
    )
    return Halves(begin, wait) if max(halves) <= step < len(kinds) else None


def begun_steps(envs: Sequence[gymnasium.Env], steps: Sequence[Callable[[Any], Any]]) -> "BegunSteps | None":
    """What steps these rows in halves; None if they are too few to wait together, or one of them has no halves.

    Args:
        envs: one a row.
        steps: what stands in a row's place where it is to be stepped, as `BegunSteps` takes it.
    """
    halves = [found for found in map(halves_of, envs) if found is not None]
    return BegunSteps(steps, halves) if len(halves) == len(envs) > 1 else None


class BegunSteps:
    """Calls one function a row as `map` would, except that the steps among them are begun first and waited for last.

    Whatever fails, no step is left half made: the others that were begun are waited for before the exception is raised. Only
    what is no `Exception` (a KeyboardInterrupt) comes through at once.

    Attributes:
        what: what the exception came from that was raised last: "step_async", "step_wait" or "reset".
    """

    def __init__(self, steps: Sequence[Callable[[Any], Any]], halves: Sequence[Halves]) -> None:
        """Rows of which none is in a step.

        Args:
            steps: R functions; where a call's functions hold one of these very objects, its halves are called instead.
            halves: R of them.
        """
        self.what = ""
        self._steps = list(steps)
        self._begins = [begin for begin, _ in halves]
        self._waits = [wait for _, wait in halves]
        self._under_way = False

    def __call__(self, functions: Sequence[Callable[[Any], Any]], arguments: Sequence[Any]) -> Iterable[Any]:
        """`map(call, functions, arguments)`, but every function has been called when this returns.

        Steps are begun in the order of rows, then whatever is no step is called (a reset, while the others wait), then the
        steps are waited for in the order of rows.

        Args:
            functions: R of them, the row's step or another.
            arguments: [R], one a function.

        Returns:
            The R results in order; an iterator that raises what the first failing row raised, in its place.

        Raises:
            WorkerError: the call before was interrupted, by a signal say.
        """
        if self._under_way:
            raise WorkerError(
                "the step before was interrupted, and rows may still be in it: make the environments anew"
            )
        self._under_way = True
        steps = self._steps
        stepped = [row for row, function in enumerate(functions) if function is steps[row]]
        results: list[Any] = [None] * len(functions)
        errors: dict[int, Exception] = {}
        num_begun = self._begin(stepped, arguments, errors)
        if len(stepped) < len(functions):
            self._call_others(functions, arguments, results, errors)
        self._wait(stepped[:num_begun], results, errors)
        self._under_way = False
        return self._up_to_error(results, errors) if errors else results

    def _begin(self, rows: list[int], arguments: Sequence[Any], errors: dict[int, Exception]) -> int:
        """How many of the rows' steps are begun: all, or those before the one that raised."""
        begins, row = self._begins, -1
        try:
            for row in rows:
                if begins[row](arguments[row]) is not None:
                    raise TypeError("step_async must return None: what the step gives is step_wait's to return")
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised in the row's place
            self.what = "step_async"
            errors[row] = error
            return rows.index(row)
        return len(rows)

    def _call_others(
        self,
        functions: Sequence[Callable[[Any], Any]],
        arguments: Sequence[Any],
        results: list[Any],
        errors: dict[int, Exception],
    ) -> None:
        """Calls what is no step, of the rows before the first that failed."""
        for row in range(min(errors, default=len(functions))):
            if functions[row] is not self._steps[row]:
                try:
                    results[row] = functions[row](arguments[row])
                except Exception as error:  # noqa: BLE001  as above
                    self.what = "reset"
                    errors[row] = error
                    return

    def _wait(self, rows: list[int], results: list[Any], errors: dict[int, Exception]) -> None:
        waits = self._waits
        for row in rows:
            try:
                results[row] = waits[row]()
            except Exception as error:  # noqa: BLE001  as above; the first in the order of rows is told
                if row < min(errors, default=len(results)):
                    self.what = "step_wait"
                    errors[row] = error

    def _up_to_error(self, results: list[Any], errors: dict[int, Exception]) -> Iterator[Any]:
        first = min(errors)
        yield from results[:first]
        raise errors[first]
