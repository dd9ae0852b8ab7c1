"""jaxsrl: reinforcement learning on JAX. An algorithm is pure functions, a plan says where they run, `run` interprets it.

The names below are the public interface, with `agents` (algorithms: `agents.ppo.make_ppo`, ...; the contract: `agents.api`) and
`envpool_bridge` (`PoolVectorEnv`). Each is imported when it is first used, so that `import jaxsrl` takes milliseconds and does not
import jax, whose settings may then still be chosen.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents.networks.config import NetworkConfig
    from envpool_bridge.adapters.environment import EnvConfig
    from envpool_bridge.errors import BridgeError, UserError
    from jaxsrl.config import RunConfig
    from jaxsrl.dataflow.make_plan import make_plan
    from jaxsrl.dataflow.plan import Plan
    from jaxsrl.dataflow.policies import POLICIES
    from jaxsrl.dataflow.resources import Resources
    from jaxsrl.environments import source_of
    from jaxsrl.evaluate import EvaluationReport
    from jaxsrl.evaluate import evaluate as evaluate_agent
    from jaxsrl.load import Loaded, load_agent
    from jaxsrl.runtime.run import run
    from jaxsrl.runtime.training import RunReport
    from jaxsrl.video import Video

__all__ = [
    "POLICIES",
    "BridgeError",
    "EnvConfig",
    "EvaluationReport",
    "Loaded",
    "NetworkConfig",
    "Plan",
    "Resources",
    "RunConfig",
    "RunReport",
    "UserError",
    "Video",
    "evaluate_agent",
    "load_agent",
    "make_plan",
    "run",
    "source_of",
]

_HOMES = {
    "BridgeError": "envpool_bridge.errors",
    "EnvConfig": "envpool_bridge.adapters.environment",
    "EvaluationReport": "jaxsrl.evaluate",
    "Loaded": "jaxsrl.load",
    "NetworkConfig": "agents.networks.config",
    "POLICIES": "jaxsrl.dataflow.policies",
    "Plan": "jaxsrl.dataflow.plan",
    "Resources": "jaxsrl.dataflow.resources",
    "RunConfig": "jaxsrl.config",
    "RunReport": "jaxsrl.runtime.training",
    "UserError": "envpool_bridge.errors",
    "Video": "jaxsrl.video",
    "evaluate_agent": "jaxsrl.evaluate",
    "load_agent": "jaxsrl.load",
    "make_plan": "jaxsrl.dataflow.make_plan",
    "run": "jaxsrl.runtime.run",
    "source_of": "jaxsrl.environments",
}
# `jaxsrl.evaluate` is the module: an attribute cannot be both.
_NAMES_THERE = {"evaluate_agent": "evaluate"}


def __getattr__(name: str) -> Any:
    """The public name, imported from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxsrl' has no attribute {name!r}: its public names are {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), _NAMES_THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
