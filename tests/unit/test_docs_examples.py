"""Examples in docstrings give what they say they give."""

import doctest
import importlib
import io

import pytest

# Modules with examples; one without any fails here, so that none is checked in vain.
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
    "envpool_bridge.tree",
    "jaxsrl.config",
    "jaxsrl.dataflow.load_policy",
    "jaxsrl.dataflow.make_plan",
    "jaxsrl.dataflow.words",
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
