"""Names of functions: what a saved configuration names is found again, or said not to be."""

import sys
import types
from functools import partial

import pytest

from envpool_bridge.envs.function_name import function_name, is_importable, load_function
from envpool_bridge.errors import UserError


class Env:
    def make(self):
        return self

    def __call__(self):
        return self


FOUND = [Env, Env.make, partial(int, "7", base=8), partial(dict, a=None, b=True, c="x(1)", d=-0.5)]
LOST = [lambda: 1, Env(), Env().make, partial(dict, a=Env()), partial(lambda: 1), partial(Env())]


@pytest.mark.parametrize("function", FOUND, ids=function_name)
def test_importable_functions_are_loaded_by_their_names(function):
    assert is_importable(function)
    loaded = load_function(function_name(function))
    assert loaded is function or loaded() == function()


@pytest.mark.parametrize("function", LOST, ids=function_name)
def test_others_are_not_importable(function):
    assert not is_importable(function)


@pytest.mark.parametrize(
    "name", ["lambda", "no_module:f", "builtins:no", "builtins:int(...)", "builtins:int(print(1))", "builtins:int("]
)
def test_load_function_names_what_it_cannot_import(name):
    with pytest.raises(UserError, match=r"cannot be imported \(.*\): expected a function or class at the top level"):
        load_function(name)


@pytest.mark.parametrize("guard", ["", "if __name__ == '__main__': f()"])
def test_functions_of_a_script_need_its_guard(tmp_path, monkeypatch, guard):
    (tmp_path / "script.py").write_text(text := f"def f(): pass\n{guard}\n")
    main = types.ModuleType("__main__")
    main.__file__ = str(tmp_path / "script.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(text, vars(main))
    assert function_name(main.f) == "script:f"
    assert is_importable(main.f) == bool(guard)
