"""Equal problems under different declarations: PPO, DQN and SAC reach the known optimum in each, or reject it in one line.

`python -m tests.learning.declared_task` compares all agents that learn online, with three seeds.
"""

import pytest

from envpool_bridge.errors import UserError
from tests.learning.declared_task import BEST, forms_of, greedy_return

REJECTED = {("dqn", "action MultiDiscrete")}
QUICK = {
    "ppo": ("int32 [0, 10000]", "mask in info"),
    "ppo (continuous)": ("action [0, 100]",),
    "dqn": ("float32 [0, 100]", "Dict"),
    "sac": ("action [0, 100]", "uint8 [0, 255]"),
}


@pytest.mark.parametrize(
    ("agent", "form"),
    [
        pytest.param(agent, form, marks=() if form in forms else pytest.mark.slow)
        for agent, forms in QUICK.items()
        for form in forms_of(agent)
    ],
)
def test_the_return_does_not_depend_on_the_declaration(agent, form):
    if (agent, form) in REJECTED:
        with pytest.raises(UserError, match="^[^\n]*$"):
            greedy_return(agent, form)
    else:
        assert greedy_return(agent, form) > 0.9 * BEST
