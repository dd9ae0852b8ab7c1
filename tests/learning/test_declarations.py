"""Equal problems under different declarations: PPO, DQN and SAC learn one task in some of its forms, or reject a form in one line.

`python -m tests.learning.declared_task` compares all agents that learn online in all forms, with three seeds.
tests/contract/test_declarations.py compares updates of every algorithm.
"""

import pytest

from envpool_bridge.errors import UserError
from tests.learning.declared_task import BEST, greedy_return


@pytest.mark.parametrize(
    ("agent", "form"),
    [
        ("ppo", "mask in info"),
        ("ppo (continuous)", "action [0, 100]"),
        ("dqn", "float32 [0, 100]"),
        ("sac", "action [0, 100]"),
    ],
)
def test_the_return_does_not_depend_on_the_declaration(agent, form):
    assert greedy_return(agent, form) > 0.9 * BEST


def test_a_form_that_cannot_be_learned_is_rejected_in_one_line():
    with pytest.raises(UserError, match="^[^\n]*$"):
        greedy_return("dqn", "action MultiDiscrete")
