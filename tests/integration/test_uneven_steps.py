"""The benchmark of environments whose steps take different times, kept short: it is not held to a figure here."""

import json

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.bench.uneven_steps import bench_uneven_steps
from jaxsrl.cli.main import main


@pytest.mark.slow
def test_every_contender_steps_and_is_compared_with_the_limit(capsys):
    main(["bench", "uneven-steps", "--rows", "3", "--least", "1", "--most", "5", "--seconds", "0.8", "--json"])
    found = json.loads(capsys.readouterr().out)
    names = ("limit", "asynchronous", "lockstep")
    assert all(found[f"{name}_env_steps_per_second"] > 0 for name in names)
    assert found["lockstep_ratio"] > 0
    assert found["asynchronous_ratio"] > 0
    assert len(found["rounds"]["limit"]) == 4


def test_bench_uneven_steps_rejects_most_below_least():
    with pytest.raises(UserError, match="at least 1.0: got 0.5"):
        bench_uneven_steps(most=0.5)
