"""jaxsrl: reinforcement learning on JAX. An algorithm is pure functions, a plan says where they run, `run` interprets it.

The names below are the public interface, with `agents` (algorithms: `agents.ppo.make_ppo`, ...; the contract: `agents.api`) and
`envpool_bridge` (`PoolVectorEnv`). Each is imported when it is first used, so that `import jaxsrl` takes milliseconds and does not
import jax, whose settings may then still be chosen.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from jaxsrl.machine.package_names import find_conflict, find_version

__version__: str

if TYPE_CHECKING:
    from agents.api import ReplayConfig
    from agents.networks.config import NetworkConfig
    from envpool_bridge.envs.config import EnvConfig
    from envpool_bridge.errors import EnvPoolError, UserError
    from jaxsrl.config.curriculum import CurriculumConfig
    from jaxsrl.config.parts import (
        CheckpointConfig,
        ClusterConfig,
        EvalConfig,
        InferenceConfig,
        LearnerConfig,
        MachineConfig,
        MetricsConfig,
        PoolConfig,
        ReplayMemoryConfig,
    )
    from jaxsrl.config.run_config import RunConfig
    from jaxsrl.envs.registry import make_env
    from jaxsrl.evaluation.evaluate import EvaluationReport
    from jaxsrl.evaluation.evaluate import evaluate as evaluate_agent
    from jaxsrl.evaluation.load_agent import LoadedAgent, load_agent
    from jaxsrl.evaluation.video import Video
    from jaxsrl.experiment import Experiment, TrainReport, train
    from jaxsrl.machine.resources import Resources
    from jaxsrl.metrics.episodes import Episode
    from jaxsrl.metrics.evaluations import Evaluation
    from jaxsrl.plan.load_plan import make_plan
    from jaxsrl.plan.plan import Plan
    from jaxsrl.plan.policies import PLANS
    from jaxsrl.run_plan import run
    from jaxsrl.training.active_run import ActiveRun
    from jaxsrl.training.callbacks import Callback
    from jaxsrl.training.setup import RunReport

__all__ = [
    "PLANS",
    "ActiveRun",
    "Callback",
    "CheckpointConfig",
    "ClusterConfig",
    "CurriculumConfig",
    "EnvConfig",
    "EnvPoolError",
    "Episode",
    "EvalConfig",
    "Evaluation",
    "EvaluationReport",
    "Experiment",
    "InferenceConfig",
    "LearnerConfig",
    "LoadedAgent",
    "MachineConfig",
    "MetricsConfig",
    "NetworkConfig",
    "Plan",
    "PoolConfig",
    "ReplayConfig",
    "ReplayMemoryConfig",
    "Resources",
    "RunConfig",
    "RunReport",
    "TrainReport",
    "UserError",
    "Video",
    "evaluate_agent",
    "load_agent",
    "make_env",
    "make_plan",
    "run",
    "train",
]

_HOMES = {
    "PLANS": "jaxsrl.plan.policies",
    "CheckpointConfig": "jaxsrl.config.parts",
    "ClusterConfig": "jaxsrl.config.parts",
    "EnvConfig": "envpool_bridge.envs.config",
    "EnvPoolError": "envpool_bridge.errors",
    "CurriculumConfig": "jaxsrl.config.curriculum",
    "EvalConfig": "jaxsrl.config.parts",
    "ActiveRun": "jaxsrl.training.active_run",
    "Callback": "jaxsrl.training.callbacks",
    "Episode": "jaxsrl.metrics.episodes",
    "Evaluation": "jaxsrl.metrics.evaluations",
    "EvaluationReport": "jaxsrl.evaluation.evaluate",
    "Experiment": "jaxsrl.experiment",
    "InferenceConfig": "jaxsrl.config.parts",
    "LearnerConfig": "jaxsrl.config.parts",
    "LoadedAgent": "jaxsrl.evaluation.load_agent",
    "MachineConfig": "jaxsrl.config.parts",
    "MetricsConfig": "jaxsrl.config.parts",
    "NetworkConfig": "agents.networks.config",
    "Plan": "jaxsrl.plan.plan",
    "PoolConfig": "jaxsrl.config.parts",
    "ReplayConfig": "agents.api",
    "ReplayMemoryConfig": "jaxsrl.config.parts",
    "Resources": "jaxsrl.machine.resources",
    "RunConfig": "jaxsrl.config.run_config",
    "RunReport": "jaxsrl.training.setup",
    "TrainReport": "jaxsrl.experiment",
    "UserError": "envpool_bridge.errors",
    "Video": "jaxsrl.evaluation.video",
    "evaluate_agent": "jaxsrl.evaluation.evaluate",
    "load_agent": "jaxsrl.evaluation.load_agent",
    "make_env": "jaxsrl.envs.registry",
    "make_plan": "jaxsrl.plan.load_plan",
    "run": "jaxsrl.run_plan",
    "train": "jaxsrl.experiment",
}
# `jaxsrl.evaluation.evaluate` is the module: an attribute cannot be both.
_NAMES_THERE = {"evaluate_agent": "evaluate"}


_conflict = find_conflict()
if _conflict:  # a warning, so that `jaxsrl doctor` can run
    warnings.warn(_conflict, RuntimeWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    """Returns a public name, imported from its home, or the version of the package."""
    if name == "__version__":
        return find_version("jaxsrl")
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxsrl' has no attribute {name!r}: its public names are {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), _NAMES_THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
