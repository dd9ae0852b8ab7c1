"""Deadline of what plays outside of training."""

import contextlib

import pytest

import jaxsrl.cli.main
from envpool_bridge.errors import UserError


@pytest.mark.parametrize(
    "arguments", [["evaluate"], ["record", "--out", "set", "--episodes", "2"], ["arena", "random"]]
)
def test_commands_that_play_have_a_deadline(monkeypatch, arguments):
    limits = []

    @contextlib.contextmanager
    def deadline(limit_seconds, *, option):
        limits.append((limit_seconds, option))
        raise UserError("seen")
        yield

    monkeypatch.setattr("jaxsrl.evaluation.progress.step_deadline", deadline)
    with pytest.raises(SystemExit):
        jaxsrl.cli.main.main([arguments[0], "no_run", *arguments[1:], "--stall-timeout-seconds", "7"])
    assert limits == [(7.0, "--stall-timeout-seconds")]
