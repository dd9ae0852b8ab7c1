"""Records and plans for tests."""

import dataclasses

from jaxsrl.machine.resources import Resources
from jaxsrl.metrics.live_state import RunInfo
from jaxsrl.metrics.record_file import parse_record
from jaxsrl.metrics.sinks import PROCESS_START, Record
from jaxsrl.plan.policies import PLANS
from tests.support.run_configs import run_config

STEPS = 64  # env steps an update


def record(update=1, seconds=None, **values):
    return Record(update, update * STEPS, update * STEPS * 4, update * 0.5 if seconds is None else seconds, values)


def make_plan(policy="single_learner_fine", **changes):
    resources = Resources(num_cores=8, num_devices=4, platform="cpu")
    return PLANS[policy](run_config(plan=policy, num_envs=16, **changes), resources)


def facts(updates=10, policy="single_learner_fine", **changes):
    return RunInfo("runs/x", make_plan(policy), updates * STEPS, changes.pop("action_repeat", 1), **changes)


def read_records(path):
    """Returns all records of a metrics.jsonl, in its order."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    parsed = [numbers for line in lines if (numbers := parse_record(line)[0]) is not None]
    fixed = [field.name for field in dataclasses.fields(Record) if field.name != "values"]
    others = {*fixed, PROCESS_START}
    return [
        Record(*(one[name] for name in fixed), {name: value for name, value in one.items() if name not in others})
        for one in parsed
    ]
