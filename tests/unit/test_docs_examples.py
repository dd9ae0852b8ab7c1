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
    "agents.importance",
    "agents.n_step",
    "agents.returns",
    "agents.running_moments",
    "agents.schedules",
    "agents.target_network",
    "agents.value_distribution",
    "envpool_bridge.function_name",
    "envpool_bridge.tree",
    "jaxsrl.cluster.bundles",
    "jaxsrl.config",
    "jaxsrl.dataflow.load_policy",
    "jaxsrl.dataflow.make_plan",
    "jaxsrl.dataflow.words",
    "jaxsrl.show_result",
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
