"""Small runs for the tests of stalls, and what makes a part of them wait for ever."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from agents.networks.config import NetworkConfig
from agents.ppo import PPOConfig, make_ppo
from envpool_bridge.envs.config import EnvConfig
from jaxsrl.envs.registry import make_env
from jaxsrl.learner.mesh import LearnerMesh
from jaxsrl.machine.resources import Resources
from jaxsrl.plan.policies import PLANS
from jaxsrl.run_plan import run
from jaxsrl.training.watchdog import Watchdog
from tests.support.run_configs import run_config

LIMIT_SECONDS = 3.0  # of the deadline, from the moment on that a part is stuck: before it, programs compile
STUCK_AFTER = 3  # updates


@contextlib.contextmanager
def deadline_from_now() -> Iterator[Callable[[], None]]:
    """Inside, a call of what this gives makes the newest run's deadline short."""
    made, begin = [], Watchdog.__init__

    def noted(self, *arguments, **options):
        begin(self, *arguments, **options)
        made.append(self)

    def shorten():
        made[-1]._limit, made[-1]._patience = LIMIT_SECONDS, 2 * LIMIT_SECONDS

    with mock.patch.object(Watchdog, "__init__", noted):
        yield shorten


def train(directory: Path, plan: str, **changes) -> None:
    """Trains PPO on CartPole, far longer than any test."""
    source = make_env(EnvConfig("CartPole-v1"))
    spec = source.spec()
    sizes = {"num_envs": 8, "rollout_length": 8, "total_env_steps": 10**7, "pool_num_workers": 2}
    reports = {"eval_final_episodes": 0, "metrics_interval_seconds": 0.0}
    config = run_config(name="run", directory=str(directory), plan=plan, **{**sizes, **reports, **changes})
    agent = make_ppo(PPOConfig(num_minibatches=1, num_epochs=1), spec, NetworkConfig(hidden_sizes=(8,)))
    run(PLANS[plan](config, Resources.detect()), agent, source, config, spec=spec, quiet=True)


def in_native_code() -> None:
    """Does not return, and hears no signal of Python's."""
    import ctypes

    ctypes.CDLL(None).sleep(600)


def stuck_in_update(shorten: Callable[[], None]):
    """The learner does not come back from its update."""
    compiled, calls = LearnerMesh.jit_update, []

    def jit_update(self, *arguments):
        update = compiled(self, *arguments)

        def stuck(state, batch):
            calls.append(1)
            if len(calls) > STUCK_AFTER:
                shorten()
                in_native_code()
            return update(state, batch)

        stuck.lower = update.lower
        return stuck

    return mock.patch.object(LearnerMesh, "jit_update", jit_update)


def stuck_in_act(shorten: Callable[[], None]):
    """The inference server does not come back from acting."""
    from jaxsrl.collect.inference import server

    serve, calls = server.InferenceServer._serve, []

    def stuck(self, lanes):
        calls.append(1)
        if len(calls) > 50:
            shorten()
            in_native_code()
        serve(self, lanes)

    return mock.patch.object(server.InferenceServer, "_serve", stuck)


def main(what: str, directory: str) -> None:
    """Trains with a part that is stuck in native code."""
    from jaxsrl.machine.lifecycle import Lifecycle

    Lifecycle.join.__defaults__ = (1.0,)  # in place of 30 s
    stuck = {"update": stuck_in_update, "act": stuck_in_act}[what]
    with deadline_from_now() as shorten, stuck(shorten):
        train(Path(directory), "single_learner_fine")
