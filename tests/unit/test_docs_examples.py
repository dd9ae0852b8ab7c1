"""Examples in docstrings give what they say they give."""

import doctest
import importlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    "agents.distributions.categorical",
    "agents.distributions.normal",
    "agents.ops.importance_weights",
    "agents.ops.n_step",
    "agents.ops.returns",
    "agents.ops.running_moments",
    "agents.ops.schedules",
    "agents.ops.target_update",
    "agents.ops.value_distributions",
    "envpool_bridge.envs.function_name",
    "envpool_bridge.spec.tree",
    "jaxsrl.cluster.protocol.bundles",
    "jaxsrl.config.run_config",
    "jaxsrl.plan.load_policy",
    "jaxsrl.plan.make_plan",
    "jaxsrl.plan.drawing.text",
    "jaxsrl.terminal.tables",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    module = importlib.import_module(name)
    printed, runner = io.StringIO(), doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    for example in doctest.DocTestFinder().find(module, name):
        runner.run(example, out=printed.write)
    results = runner.summarize(verbose=False)
    assert results.attempted > 0
    assert results.failed == 0, printed.getvalue()


def test_every_module_with_examples_is_listed():
    files = [path for package in ("agents", "envpool_bridge", "jaxsrl") for path in (ROOT / package).rglob("*.py")]
    with_examples = [path for path in files if re.search(r"^\s*>>> ", path.read_text(), re.MULTILINE)]
    assert sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in with_examples) == MODULES
