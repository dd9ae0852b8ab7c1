"""Translation of a traced function of jax into Python source that needs numpy only.

Calls are inlined, and each remaining equation becomes one assignment. Loops and branches become functions. Assignments that no
result depends on are removed. A greedy policy thus needs no random numbers, and parameters of a value function are not exported.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

from envpool_bridge.errors import UserError
from jaxsrl.evaluation.export.numpy_primitives import find_expression, format_scalar, format_value, join_tuple

_CALLS = {
    "checkpoint",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "jit",
    "pjit",
    "remat2",
}
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_TUPLES = {"cond", "scan", "sort", "split", "while"}  # their values are tuples, of a single result too


class _UnsupportedError(Exception):
    """A result depends on something that numpy does not support here; the message names it."""


@dataclasses.dataclass(frozen=True)
class _Line:
    """An assignment.

    Attributes:
        targets: names of the results.
        text: the value; "" where it cannot be computed in numpy.
        operands: texts that it reads.
        problem: why it cannot be computed in numpy.
        definitions: functions that it calls.
        is_tuple: whether the value is a tuple of a single result, too.
    """

    targets: tuple[str, ...]
    text: str
    operands: frozenset[str]
    problem: str = ""
    definitions: tuple[str, ...] = ()
    is_tuple: bool = False


class NumpySource:
    """Source of a function `network(p, b, ...)` of arrays by name, the number of environments and the inputs.

    Args:
        closed: traced function.
        arguments: text of each of its arguments; those that are no plain names read `p`.

    Attributes:
        text: the source.
        constants: arrays of the traced function by name, which `p` must contain.
        names: names in `p` that are read.

    Raises:
        UserError: If a result depends on a primitive that numpy does not support here.
    """

    def __init__(self, closed: Any, arguments: Sequence[str]) -> None:
        self.constants: dict[str, np.ndarray] = {}
        self._numbers = itertools.count()
        parameters = [name for name in arguments if name.isidentifier()]
        try:
            text, operands = self._function("network", closed, parameters, arguments)
        except _UnsupportedError as error:
            raise UserError(
                f"this policy needs {error}, which the export to numpy does not support: use --to jax"
            ) from None
        self.text = text
        self.names = {operand[3:-2] for operand in operands if operand.startswith('p["')}

    def _function(
        self, name: str, closed: Any, parameters: Sequence[str], arguments: Sequence[str]
    ) -> tuple[str, frozenset[str]]:
        """Returns the source of a function, after those that it calls, and the texts that it reads."""
        lines: list[_Line] = []
        results = self._inline(closed, arguments, lines)
        kept = _live_lines(lines, results)
        for line in kept:
            if line.problem:
                raise _UnsupportedError(line.problem)
        body = [
            f"    {join_tuple(line.targets) if line.is_tuple else ', '.join(line.targets)} = {line.text}"
            for line in kept
        ]
        head = f"def {name}({', '.join(('p', 'b', *parameters))}):"
        text = "\n".join([head, *body, f"    return {join_tuple(results)}"]) + "\n"
        definitions = [definition for line in kept for definition in line.definitions]
        operands = frozenset(results).union(*(line.operands for line in kept))
        return "\n\n".join([*definitions, text]), operands

    def _inline(self, closed: Any, arguments: Sequence[str], lines: list[_Line]) -> list[str]:
        """Appends the assignments of a traced function and returns the texts of its results."""
        jaxpr, constants = (closed.jaxpr, closed.consts) if hasattr(closed, "consts") else (closed, ())
        texts = dict(zip(jaxpr.invars, arguments, strict=True))
        texts |= {variable: self._constant(value) for variable, value in zip(jaxpr.constvars, constants, strict=True)}

        def read(variable: Any) -> str:
            return self._literal(variable.val) if isinstance(variable, Literal) else texts[variable]

        for equation in jaxpr.eqns:
            operands = [read(variable) for variable in equation.invars]
            if equation.primitive.name in _CALLS:
                body = next(equation.params[name] for name in _BODIES if name in equation.params)
                results = self._inline(body, operands, lines)
            else:
                results = [f"x{next(self._numbers)}" for _ in equation.outvars]
                lines.append(self._line(equation, operands, tuple(results)))
            texts |= dict(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _line(self, equation: Any, operands: list[str], targets: tuple[str, ...]) -> _Line:
        name = equation.primitive.name
        expression = find_expression(name)
        reads = frozenset(operands)
        unusual = next((str(variable.aval.dtype) for variable in equation.outvars if _is_unusual(variable)), "")
        if unusual:
            return _Line(targets, "", reads, f"{name} with dtype {unusual}")
        try:
            if name in ("scan", "while", "cond"):
                return self._control_flow(equation, operands, targets)
            if expression is not None:
                return _Line(targets, expression(equation, operands), reads, is_tuple=name in _TUPLES)
        except (_UnsupportedError, NotImplementedError) as error:
            return _Line(targets, "", reads, str(error) or f"the primitive {name} with these parameters")
        return _Line(targets, "", reads, f"the primitive {name}")

    def _control_flow(self, equation: Any, operands: list[str], targets: tuple[str, ...]) -> _Line:
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            bodies = [params["jaxpr"]]
        elif name == "cond":
            bodies = list(params["branches"])
        else:
            bodies = [params["cond_jaxpr"], params["body_jaxpr"]]
        functions, definitions, reads = [], [], frozenset(operands)
        for body in bodies:
            function = f"{name}_{next(self._numbers)}"
            inner = [f"x{next(self._numbers)}" for _ in body.jaxpr.invars]
            text, inner_reads = self._function(function, body, inner, inner)
            functions.append(f"partial({function}, p, b)")
            definitions.append(text)
            reads |= {read for read in inner_reads if read.startswith('p["')}
        if name == "scan":
            sizes = format_value((params["length"], params["num_consts"], params["num_carry"]))
            text = f"scan({functions[0]}, {join_tuple(operands)}, {sizes}, {params['reverse']})"
        elif name == "cond":
            text = f"switch({join_tuple(functions)}, {', '.join(operands)})"
        else:
            sizes = format_value((params["cond_nconsts"], params["body_nconsts"]))
            text = f"while_loop({', '.join(functions)}, {join_tuple(operands)}, {sizes})"
        return _Line(targets, text, reads, definitions=tuple(definitions), is_tuple=True)

    def _literal(self, value: Any) -> str:
        return format_scalar(value) if np.ndim(value) == 0 else self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"constant/{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return f'p["{name}"]'


def _is_unusual(variable: Any) -> bool:
    """Returns whether numpy alone lacks the dtype: keys of random numbers, bfloat16."""
    try:
        return np.dtype(variable.aval.dtype).kind not in "biuf"
    except TypeError:
        return True


def _live_lines(lines: Sequence[_Line], results: Sequence[str]) -> list[_Line]:
    """Returns the lines that the results depend on."""
    live, kept = set(results), []
    for line in reversed(lines):
        if not live.isdisjoint(line.targets):
            live |= line.operands
            kept.append(line)
    return kept[::-1]
