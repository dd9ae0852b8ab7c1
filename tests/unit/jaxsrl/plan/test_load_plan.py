"""Policies by name: ours, a user's file, a user's module, and what is said of names that stand for nothing."""

import sys

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.config.run_config import RunConfig
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.load_plan import load_plan
from jaxsrl.plan.policies import PLANS, serial

MINE = """
import dataclasses
from jaxsrl.plan.policies import serial

@dataclasses.dataclass
class Wanted:
    name: "str"

number = 3

def mine(run, resources):
    return dataclasses.replace(serial(run, resources), name=Wanted("mine").name)

def forgets(run, resources):
    serial(run, resources)
"""
HERE = Resources(4, "cpu", 1)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    path = tmp_path / "own_policies.py"
    path.write_text(MINE)
    return path


def refusal(name: str) -> str:
    with pytest.raises(UserError) as refused:
        load_plan(name)(RunConfig(), HERE)
    return str(refused.value)


@pytest.mark.parametrize("name", PLANS)
def test_our_own_names_stand_for_our_own_policies(name):
    assert load_plan(name) is PLANS[name]


def test_a_file_and_a_function_make_the_users_plan(file):
    assert load_plan(f"{file}:mine")(RunConfig(), HERE).name == "mine"


def test_a_relative_file_is_looked_for_in_the_working_directory(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    assert load_plan(f"{file.name}:mine")(RunConfig(), HERE).name == "mine"


def test_a_module_and_a_function_make_the_users_plan(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    assert load_plan("own_policies:mine")(RunConfig(), HERE).name == "mine"
    assert load_plan("jaxsrl.plan.policies:serial")(RunConfig(), HERE) == serial(RunConfig(), HERE)


def test_a_file_named_like_a_package_does_not_take_its_place(tmp_path, file):
    (tmp_path / "numpy.py").write_text(MINE)
    numpy = sys.modules["numpy"]
    assert load_plan(f"{tmp_path / 'numpy.py'}:mine")(RunConfig(), HERE).name == "mine"
    assert sys.modules["numpy"] is numpy


def test_an_unknown_name_is_refused_with_the_close_ones_and_all():
    message = refusal("single_learner_fin")
    assert "unknown plan 'single_learner_fin': did you mean single_learner_fine or single_learner_coarse?" in message
    assert all(name in message for name in PLANS)
    assert "path/to/file.py:function" in message
    assert "did you mean" not in refusal("xyzzy")


def test_a_file_that_does_not_exist_is_refused(tmp_path):
    message = refusal(f"{tmp_path / 'nowhere.py'}:mine")
    assert f"there is no file {tmp_path / 'nowhere.py'}" in message
    assert "check the path" in message


def test_a_file_without_a_function_is_refused(file):
    assert f"lacks a function: write {file}:function" in refusal(str(file))
    assert "lacks a function" in refusal(f"{file}:")
    assert "lacks a file or module" in refusal(":mine")


def test_missing_plan_function_error_names_a_close_match(file):
    assert f"there is no function mien in {file}: did you mean mine?" in refusal(f"{file}:mien")
    assert "define it: def my_plan(run: RunConfig, resources: Resources) -> Plan" in refusal(f"{file}:xyzzy")


def test_what_cannot_be_called_is_refused(file):
    assert "number is int, not a function: name one that takes" in refusal(f"{file}:number")


def test_function_without_plan_is_rejected(file):
    assert "must return a jaxsrl.plan.plan.Plan: got NoneType" in refusal(f"{file}:forgets")


def test_a_module_that_does_not_exist_is_refused():
    assert "there is no module nowhere_at_all: install it, or name a file" in refusal("nowhere_at_all.policies:mine")
    assert "there is no module jaxsrl.nowhere" in refusal("jaxsrl.nowhere:mine")


def test_errors_of_the_users_own_file_keep_their_traceback(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    file.write_text("import a_package_that_is_missing\n")
    for name in (f"{file}:mine", "own_policies:mine"):
        with pytest.raises(ModuleNotFoundError, match="a_package_that_is_missing"):
            load_plan(name)
