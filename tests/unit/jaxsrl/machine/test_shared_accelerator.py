"""Commands that look at runs leave the accelerator's memory to those; what the user has chosen stands."""

import os

import pytest

from jaxsrl.cli import main
from jaxsrl.cli.commands.evaluate import Evaluate
from jaxsrl.cli.commands.train import Train

PREALLOCATE, FRACTION = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"


def settings_seen(monkeypatch, kind, arguments, **chosen):
    seen = {}

    def run(self):
        del self
        seen.update({name: os.environ.get(name) for name in (PREALLOCATE, FRACTION)})
        return 0

    for name in (PREALLOCATE, FRACTION, "XLA_PYTHON_CLIENT_ALLOCATOR"):
        monkeypatch.setenv(name, "")  # so that what the command sets is taken away after the test
        monkeypatch.delenv(name)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(kind, "run", run)
    main.main(arguments)
    return seen


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({}, {PREALLOCATE: "false", FRACTION: None}), ({PREALLOCATE: "true"}, {PREALLOCATE: "true", FRACTION: None}),
     ({FRACTION: ".2"}, {PREALLOCATE: None, FRACTION: ".2"})],
)  # fmt: skip
def test_evaluation_does_not_preallocate_memory(monkeypatch, chosen, expected):
    assert settings_seen(monkeypatch, Evaluate, ["evaluate", "runs/any"], **chosen) == expected


def test_training_keeps_jaxs_own_setting(monkeypatch):
    assert settings_seen(monkeypatch, Train, ["train", "ppo_cartpole"]) == {PREALLOCATE: None, FRACTION: None}
