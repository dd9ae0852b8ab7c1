"""Fingerprint of the code and values that determine a run. Installed packages, and jaxsrl's own, count by version elsewhere."""

import ast
import dataclasses
import enum
import functools
import hashlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envpool_bridge.envs.function_name import function_name

_ROOT = Path(__file__).resolve().parents[2]
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"]).resolve()
_LONG = 200  # characters of a text, beyond which its hash replaces it
_OWN = ("agents", "envpool_bridge", "experiments", "jaxsrl")
_NOT_CODE = re.compile("__(dict|weakref|doc|module|annot.*|firstlineno|static_attributes|abstractmethods)__|_abc_impl")


def fingerprint(values: Mapping[str, Any], described: Collection[str] = (), config: Any = None) -> dict[str, str]:
    """Returns a hash of each value, and of the code that they use and that no package installs.

    A module counts by the text of its file, with the modules that it imports. A function or class of the main program counts by
    its instructions, and the values and globals that it uses.

    Args:
        values: configurations, functions, classes and objects, by name.
        described: names of values that a configuration describes, too: their hash counts if they use such code.
        config: JSON data, whose strings may name modules ("module:function"); its own hash does not count.

    Returns:
        Hashes by the names of the values, of modules, and of functions ("module:function"); the same in every process.
    """
    code, hashes = dict[str, str](), dict[str, str]()
    for name, value in {**values, "": config}.items():
        search = _Search()
        text = search.describe(value)
        if name and (search.code or name not in described):
            hashes[name] = _sha256(text)
        code |= {
            key: own if code.get(key, own) == own else _sha256(code[key] + own) for key, own in search.code.items()
        }
    return dict(sorted((code | hashes).items()))


def changed_modules(code: Mapping[str, str]) -> list[str]:
    """Returns the names of the imported modules in a `fingerprint` whose files have other contents now."""
    files = {name: file for name in code if name in sys.modules and (file := user_file(name))}
    return [name for name, file in files.items() if hash_file(file.read_bytes()) != code[name]]


def read_modules(*values: Any) -> dict[str, tuple[str, bytes]]:
    """Returns the modules that values use and that no package installs, with their packages, by name.

    Returns:
        File and text of each; of a compiled one the hash in place of the text.
    """
    search, modules = _Search(), dict[str, tuple[str, bytes]]()
    for value in values:
        search.describe(value)
    for name in list(search.code):
        for package in _with_packages(name):
            search.add_module(package)
    for name in search.code:
        if file := user_file(name):
            data = file.read_bytes()
            modules[name] = str(file), data if file.suffix == ".py" else hash_file(data).encode()
    return modules


@functools.cache
def own_source() -> str:
    """Returns `hash_own_source` as of the first call in this process."""
    return hash_own_source()


def hash_own_source() -> str:
    """Returns the sha256 of the source files of jaxsrl, as they are now."""
    digest = hashlib.sha256()
    for package in ("agents", "envpool_bridge", "jaxsrl"):
        for path in sorted((_ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class _Search:
    """Hashes of the code that has been reached so far, by name."""

    def __init__(self) -> None:
        self.code: dict[str, str] = {}
        self._texts: dict[int, tuple[Any, str]] = {}  # by id, with the object, so that no other one gets the id

    def add_named(self, name: str) -> None:
        """Adds the module that a string names, where it names one."""
        for part in {name, name.partition(":")[0]} & sys.modules.keys():
            self.add_module(part)

    def describe(self, value: Any) -> str:
        """Returns a text that is the same in every process for equal values; adds the code that the value uses."""
        if value is None or isinstance(value, (bool, int, float, complex, bytes)):
            return repr(value)
        if isinstance(value, str):
            self.add_named(value)
            return repr(value)
        if id(value) not in self._texts:
            self._texts[id(value)] = value, "..."  # of a value that contains itself
            text = self._describe_new(value)
            self._texts[id(value)] = value, text if len(text) < _LONG else _sha256(text)
        return self._texts[id(value)][1]

    def _describe_new(self, value: Any) -> str:
        if isinstance(value, type):
            return self._describe_class(value)
        if isinstance(value, types.ModuleType):
            self.add_module(value.__name__)
            return value.__name__
        if isinstance(value, types.CodeType):
            names = value.co_names, value.co_varnames, value.co_freevars
            return f"code({value.co_code!r}, {self._describe_all((value.co_consts, names))})"
        if isinstance(value, types.FunctionType):
            return self._describe_function(value)
        return self._describe_object(value)

    def _describe_object(self, value: Any) -> str:
        kind = function_name(type(value))
        if isinstance(value, (tuple, list)):
            return f"{kind}[{self._describe_all(value)}]"
        if isinstance(value, (set, frozenset)):
            return f"{kind}{{{', '.join(sorted(map(self.describe, value)))}}}"
        if isinstance(value, Mapping):
            items = [f"{self.describe(key)}: {self.describe(item)}" for key, item in value.items()]
            return f"{kind}{{{', '.join(sorted(items))}}}"
        if hasattr(value, "dtype") and hasattr(value, "__array__"):
            return self._describe_array(value)
        parts = _callable_parts(value)
        if parts is not None:
            return f"{kind}({self._describe_all(parts)})"
        return f"{self.describe(type(value))}({self.describe(_state(value))})"

    def _describe_all(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.describe, values))

    def _describe_array(self, value: Any) -> str:
        try:
            data = np.asarray(value)
        except (TypeError, ValueError):  # keys of jax, and values that a transformation traces
            return f"{value.dtype}{value.shape}"
        if data.dtype == object:
            return f"{data.shape}{self.describe(data.tolist())}"
        return f"{data.dtype}{data.shape}{hashlib.sha256(data.tobytes()).hexdigest()}"

    def _describe_function(self, function: types.FunctionType) -> str:
        bound = [self._describe_all((function.__defaults__, function.__kwdefaults__))]
        bound += [self.describe(cell.cell_contents) for cell in function.__closure__ or () if _is_filled(cell)]
        return self._describe_code(function, bound, (function,))

    def _describe_class(self, kind: type) -> str:
        if not _is_of_program(kind):
            return self._describe_code(kind, [], ())
        own = {name: value for name, value in vars(kind).items() if not _NOT_CODE.fullmatch(name)}
        parts = [f"{name}={self.describe(value)}" for name, value in sorted(own.items())]
        return self._describe_code(kind, [*map(self.describe, kind.__bases__), *parts], ())

    def _describe_code(self, named: Any, bound: list[str], functions: tuple[types.FunctionType, ...]) -> str:
        """Adds the code of a function or class; returns its name with what is bound to it."""
        name = function_name(named)
        if not _is_of_program(named):
            self.add_module(named.__module__ or "")
            return f"{name}({', '.join(bound)})"
        for function in functions:
            bound.append(self.describe(function.__code__))
            known = function.__globals__
            used = sorted({used for code in _codes(function.__code__) for used in code.co_names if used in known})
            bound += [f"{used}={self.describe(known[used])}" for used in used]
        self.code[name] = _sha256(f"{self.code.get(name, '')}{', '.join(bound)}")
        return name

    def add_module(self, name: str) -> None:
        """Adds a module, if no package installs it, with those that it imports."""
        file = None if name in self.code or not name.isascii() else user_file(name)
        if file is None:
            return
        data = file.read_bytes()
        self.code[name] = hash_file(data)
        if file.suffix == ".py":
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            for imported in _imports(data, package):
                self.add_module(imported)


def _state(value: Any) -> Any:
    """Returns what an object contains: its fields, or what its pickle has; None for values that no pickle can have, as locks."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(value, "__dict__"):
        return dict(vars(value))
    try:
        pickled = value.__reduce_ex__(2)
    except TypeError:
        return None
    return [list(part) if isinstance(part, Iterator) else part for part in pickled]


def _callable_parts(value: Any) -> tuple[Any, ...] | None:
    """Returns what an enumeration's member, a method, a wrapper or a built-in function consists of; None for other values."""
    if isinstance(value, enum.Enum):
        return (value.name,)
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return value.fget, value.fset, value.fdel
    if hasattr(value, "__wrapped__"):  # jax.jit(f)
        return (value.__wrapped__,)
    return (getattr(value, "__qualname__", ""),) if inspect.isroutine(value) else None


def _is_of_program(named: Any) -> bool:
    """Returns whether a function or class is of the main program, or of other text without a module's file, as a cell."""
    module = sys.modules.get(named.__module__ or "")
    return named.__module__ == "__main__" or (module is None and not _is_installed(inspect.getsourcefile(named) or ""))


def user_file(name: str) -> Path | None:
    """Returns the file of a module that no package installs; None for others, for names of no module, and for the main program."""
    if name == "__main__" or not all(part.isidentifier() for part in name.split(".")):
        return None
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None:
        first = name.partition(".")[0]
        if first != name and user_file(first) is None:
            return None
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        file = spec.origin if spec is not None and spec.has_location else None
    return None if not file or _is_installed(file) or not Path(file).is_file() else Path(file)


@functools.cache
def _is_installed(file: str) -> bool:
    path = Path(file).resolve()
    own = path.relative_to(_ROOT).parts[0] in _OWN if path.is_relative_to(_ROOT) and path != _ROOT else False
    return own or bool({"site-packages", "dist-packages"} & {*path.parts}) or path.is_relative_to(_STANDARD_LIBRARY)


@functools.lru_cache(1_000)
def _imports(source: bytes, package: str) -> Sequence[str]:
    """Returns the names of all modules that a module imports, also in functions, and of some that are none."""
    imported: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*parts, *([node.module] if node.module else [])])
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        imported += [package for name in names for package in _with_packages(name)]
    return imported


def _with_packages(name: str) -> list[str]:
    return [".".join(name.split(".")[: count + 1]) for count in range(name.count(".") + 1)]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def hash_file(data: bytes) -> str:
    """Returns the hash of a file's contents."""
    return hashlib.sha256(data).hexdigest()[:16]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
