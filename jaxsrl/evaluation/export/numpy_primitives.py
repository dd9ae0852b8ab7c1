"""Expressions of numpy for the primitives of jax: each is text of an equation, given the text of its operands."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

Expression = Callable[[Any, Sequence[str]], str]
"""Maps (equation, texts of its operands) to the text of its value, a tuple if it has several results."""

_FORMATS = {
    "abs": "np.abs({0})",
    "add": "{0} + {1}",
    "add_any": "{0} + {1}",
    "and": "{0} & {1}",
    "atan2": "np.arctan2({0}, {1})",
    "ceil": "np.ceil({0})",
    "clamp": "np.minimum(np.maximum({1}, {0}), {2})",
    "copy": "{0}",
    "copy_p": "{0}",
    "cos": "np.cos({0})",
    "div": "divide({0}, {1})",
    "eq": "{0} == {1}",
    "erf": "erf({0})",
    "exp": "np.exp({0})",
    "exp2": "np.exp2({0})",
    "expm1": "np.expm1({0})",
    "floor": "np.floor({0})",
    "ge": "{0} >= {1}",
    "gt": "{0} > {1}",
    "is_finite": "np.isfinite({0})",
    "le": "{0} <= {1}",
    "log": "np.log({0})",
    "log1p": "np.log1p({0})",
    "logistic": "logistic({0})",
    "lt": "{0} < {1}",
    "max": "np.maximum({0}, {1})",
    "min": "np.minimum({0}, {1})",
    "mul": "{0} * {1}",
    "ne": "{0} != {1}",
    "neg": "-{0}",
    "not": "~{0}",
    "or": "{0} | {1}",
    "pow": "np.power({0}, {1})",
    "reduce_precision": "{0}",
    "rem": "np.fmod({0}, {1})",
    "rsqrt": "1 / np.sqrt({0})",
    "sign": "np.sign({0})",
    "sin": "np.sin({0})",
    "sqrt": "np.sqrt({0})",
    "square": "np.square({0})",
    "stop_gradient": "{0}",
    "sub": "{0} - {1}",
    "tan": "np.tan({0})",
    "tanh": "np.tanh({0})",
    "xor": "{0} ^ {1}",
}

_REDUCTIONS = {
    "reduce_and": "all",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "any",
    "reduce_prod": "prod",
    "reduce_sum": "sum",
}
_ACCUMULATIONS = {"cummax": "maximum", "cummin": "minimum", "cumprod": "multiply", "cumsum": "add"}
_WINDOWS = {"reduce_window_max": "maximum", "reduce_window_min": "minimum", "reduce_window_sum": "add"}


def format_value(value: Any) -> str:
    """Formats sizes, symbolic ones too, and nested tuples of them, as Python."""
    if isinstance(value, (tuple, list)):
        return join_tuple([format_value(part) for part in value])
    if value is None or isinstance(value, (bool, np.bool_)):
        return repr(value if value is None else bool(value))
    return str(int(value)) if isinstance(value, (int, np.integer)) else f"({value})"


def join_tuple(texts: Sequence[str]) -> str:
    """Returns the text of a tuple, of a single value too."""
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def format_scalar(value: Any) -> str:
    """Formats a scalar with its dtype: `np.float32(0.5)`."""
    array = np.asarray(value)
    text = repr(array.item()) if np.isfinite(array) else f'"{array.item()}"'
    return f"np.{_dtype(array.dtype)}({text})"


def find_expression(name: str) -> Expression | None:
    """Returns the expression of a primitive; None if it is not supported."""
    if name in _FORMATS:
        return lambda equation, operands: _FORMATS[name].format(*operands)
    return _EXPRESSIONS.get(name)


def _dtype(dtype: Any) -> str:
    name = np.dtype(dtype).name
    return "bool_" if name == "bool" else name


def _shape(equation: Any) -> str:
    return format_value(equation.outvars[0].aval.shape)


def _params(equation: Any, *names: str) -> str:
    return ", ".join(f"{name}={format_value(equation.params[name])}" for name in names)


def _reduce(equation: Any, operands: Sequence[str]) -> str:
    method, axes = _REDUCTIONS[equation.primitive.name], format_value(equation.params["axes"])
    dtype = f", dtype=np.{_dtype(equation.outvars[0].aval.dtype)}" if method in ("sum", "prod") else ""
    return f"{operands[0]}.{method}(axis={axes}{dtype})"


def _accumulate(equation: Any, operands: Sequence[str]) -> str:
    ufunc, params = _ACCUMULATIONS[equation.primitive.name], equation.params
    return f"accumulate(np.{ufunc}, {operands[0]}, {params['axis']}, {params['reverse']})"


def _reduce_window(equation: Any, operands: Sequence[str]) -> str:
    ufunc = _WINDOWS[equation.primitive.name]
    dtype = equation.invars[0].aval.dtype
    limits = np.finfo(dtype) if np.issubdtype(dtype, np.floating) else np.iinfo(dtype)
    initial = {"maximum": limits.min, "minimum": limits.max, "add": 0}[ufunc]
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return f"reduce_window({operands[0]}, np.{ufunc}, {initial}, {_params(equation, *names)})"


def _arg_extreme(equation: Any, operands: Sequence[str]) -> str:
    (axis,), dtype = equation.params["axes"], _dtype(equation.params["index_dtype"])
    return f"np.{equation.primitive.name}({operands[0]}, axis={axis}).astype(np.{dtype})"


def _broadcast(equation: Any, operands: Sequence[str]) -> str:
    return f"broadcast({operands[0]}, {_shape(equation)}, {format_value(equation.params['broadcast_dimensions'])})"


def _slice(equation: Any, operands: Sequence[str]) -> str:
    params = equation.params
    strides = params["strides"] or [None] * len(params["start_indices"])
    cuts = []
    for start, limit, stride in zip(params["start_indices"], params["limit_indices"], strides, strict=True):
        step = "" if stride is None else f":{format_value(stride)}"
        cuts.append(f"{format_value(start)}:{format_value(limit)}{step}")
    return f"{operands[0]}[{', '.join(cuts)}]"


def _split(equation: Any, operands: Sequence[str]) -> str:
    axis, start, parts = equation.params["axis"], 0, []
    for size in equation.params["sizes"]:
        parts.append(f"{operands[0]}[{':, ' * axis}{format_value(start)}:{format_value(start + size)}]")
        start = start + size
    return join_tuple(parts)


def _dot_general(equation: Any, operands: Sequence[str]) -> str:
    contract, batch = equation.params["dimension_numbers"]
    a, b = (variable.aval for variable in equation.invars)
    dtype = equation.outvars[0].aval.dtype
    cast = "" if a.dtype == b.dtype == dtype else f".astype(np.{_dtype(dtype)})"
    if contract == ((len(a.shape) - 1,), (0,)) and batch == ((), ()) and len(b.shape) == 2 and len(a.shape) > 1:
        product = f"{operands[0]} @ {operands[1]}"
        return f"({product}){cast}" if cast else product
    return f"dot_general({operands[0]}, {operands[1]}, {format_value(contract)}, {format_value(batch)}){cast}"


def _convolve(equation: Any, operands: Sequence[str]) -> str:
    params, layout = equation.params, format_value(tuple(equation.params["dimension_numbers"]))
    if params["batch_group_count"] != 1:
        raise NotImplementedError
    return (
        f"convolve({operands[0]}, {operands[1]}, {layout}, strides={format_value(params['window_strides'])}, "
        f"{_params(equation, 'padding', 'lhs_dilation', 'rhs_dilation')}, groups={params['feature_group_count']})"
    )


def _gather(equation: Any, operands: Sequence[str]) -> str:
    params, dtype = equation.params, equation.invars[0].aval.dtype
    fill = "None"
    if params["mode"] == GatherScatterMode.FILL_OR_DROP:
        value = params["fill_value"]
        fill = format_scalar(_default_fill(dtype) if value is None else np.asarray(value, dtype))
    numbers = params["dimension_numbers"]
    names = (
        "offset_dims",
        "collapsed_slice_dims",
        "start_index_map",
        "operand_batching_dims",
        "start_indices_batching_dims",
    )
    axes = ", ".join(f"{name}={format_value(getattr(numbers, name))}" for name in names)
    return f"gather({operands[0]}, {operands[1]}, {format_value(params['slice_sizes'])}, {fill}, {axes})"


def _default_fill(dtype: Any) -> np.ndarray:
    """Returns the value that XLA's gather gives for slices outside of the array."""
    if np.issubdtype(dtype, np.floating):
        return np.asarray(np.nan, dtype)
    if dtype == np.bool_:
        return np.asarray(True)
    limits = np.iinfo(dtype)
    return np.asarray(limits.min if limits.min else limits.max, dtype)


_EXPRESSIONS: dict[str, Expression] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_ACCUMULATIONS, _accumulate),
    **dict.fromkeys(_WINDOWS, _reduce_window),
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), lambda equation, x: f"{x[0]}.reshape({_shape(equation)})"),
    "argmax": _arg_extreme,
    "argmin": _arg_extreme,
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda equation, x: f"np.concatenate({join_tuple(x)}, axis={equation.params['dimension']})",
    "conv_general_dilated": _convolve,
    "convert_element_type": lambda equation, x: f"{x[0]}.astype(np.{_dtype(equation.params['new_dtype'])})",
    "dim_as_value": lambda equation, x: f"np.int32({format_value(equation.params['dim'])})",
    "dot_general": _dot_general,
    "dynamic_slice": lambda equation, x: (
        f"dynamic_slice({x[0]}, {join_tuple(x[1:])}, {format_value(equation.params['slice_sizes'])})"
    ),
    "dynamic_update_slice": lambda equation, x: f"dynamic_update_slice({x[0]}, {x[1]}, {join_tuple(x[2:])})",
    "gather": _gather,
    "integer_pow": lambda equation, x: f"{x[0]} ** {equation.params['y']}",
    "iota": lambda equation, x: (
        f"iota({_shape(equation)}, {equation.params['dimension']}, np.{_dtype(equation.params['dtype'])})"
    ),
    "pad": lambda equation, x: f"pad({x[0]}, {x[1]}, {format_value(equation.params['padding_config'])})",
    "rev": lambda equation, x: f"np.flip({x[0]}, {format_value(equation.params['dimensions'])})",
    "round": lambda equation, x: f"np.round({x[0]})",
    "select_n": lambda equation, x: f"select({', '.join(x)})",
    "slice": _slice,
    "sort": lambda equation, x: f"sort({join_tuple(x)}, {equation.params['dimension']}, {equation.params['num_keys']})",
    "split": _split,
    "stack": lambda equation, x: f"np.stack({join_tuple(x)}, axis={equation.params['axis']})",
    "top_k": lambda equation, x: f"top_k({x[0]}, {equation.params['k']}, {equation.params['axis']})",
    "transpose": lambda equation, x: f"{x[0]}.transpose({format_value(equation.params['permutation'])})",
}
