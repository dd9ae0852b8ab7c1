"""Imitation of an expert: settings, demonstrations from a dataset, and the policy of a run as expert or teacher."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from agents.api import Agent, AnyAgent, Params, ReplayAgent
from agents.networks.actor_critic import ActorCritic
from agents.networks.config import NetworkConfig
from agents.networks.custom import bound_network
from agents.ops import validate
from agents.ops.epsilon_greedy import epsilon_schedule
from agents.transforms.expert_labels import Expert, with_expert_labels
from agents.transforms.imitation import GAILConfig, Steps, with_imitation
from agents.transforms.teacher import Teacher, with_teacher
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, EnvSpec
from envpool_bridge.spec.tree import leaves, map_leaves
from jaxsrl.checkpoints.manifest import CorruptCheckpointError
from jaxsrl.checkpoints.names import LEARNER
from jaxsrl.checkpoints.store import unflatten
from jaxsrl.config.serialization import from_json
from jaxsrl.datasets.compare import same_actions, same_values
from jaxsrl.datasets.dataset import open_dataset
from jaxsrl.runs.read_checkpoint import read_saved_run

_MAX_BYTES = 64 * 2**20  # they are a constant of the compiled update


@dataclasses.dataclass(frozen=True)
class ImitationConfig(GAILConfig):
    """Settings of GAIL, AIRL, DAgger and teachers.

    Attributes:
        demonstrations: directory of a dataset, whose steps the policy imitates (GAIL, AIRL); "" for the rewards of the environment.
        expert: run directory, RUN@TAG, or checkpoint, whose policy labels every step of BC (DAgger); "" for none.
        expert_acts_fraction: fraction of the run over which the probability that the expert acts falls from 1 to 0.
        teacher: run, RUN@TAG, or checkpoint, whose policy the agent imitates while it learns from rewards; "" for none.
        teacher_coef: weight of KL(teacher || student), nats, in the loss of the first update.
        teacher_env_steps: env steps over which that weight falls linearly to 0; 0: it stays.
    """

    demonstrations: str = ""
    expert: str = ""
    expert_acts_fraction: float = 0.5
    teacher: str = ""
    teacher_coef: float = 1.0
    teacher_env_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.fraction(self, "expert_acts_fraction", above_zero=True)
        validate.positive(self, "teacher_coef")
        validate.not_negative(self, "teacher_env_steps")
        if self.teacher and (self.demonstrations or self.expert):
            raise UserError(
                "a teacher goes with the environment's rewards: expected imitation.teacher without imitation.demonstrations and "
                "imitation.expert"
            )
        if self.demonstrations and self.expert:
            raise UserError(
                "a policy imitates a dataset or labels of an expert: expected imitation.demonstrations or imitation.expert, "
                "got both"
            )


def imitating_agent(
    agent: AnyAgent,
    config: ImitationConfig,
    spec: EnvSpec,
    load_policy: Callable[[Path], Any] | None,
    num_updates: int = 0,
) -> AnyAgent:
    """Returns the agent that imitates the demonstrations or the expert, or the agent itself where there are none.

    Args:
        agent: Agent of the experiment.
        config: settings.
        spec: Specification of the environments.
        load_policy: returns the `agent` and `params` of a run, for these environments; None for an agent that only acts, and needs
            neither demonstrations nor an expert.
        num_updates: updates of the whole run.

    Raises:
        UserError: If the demonstrations are of another environment or too large, or see `with_imitation`.
        UserError: If the agent does not learn from labels, the expert is of another environment or has a memory.
        CorruptDatasetError: If a file of the dataset is damaged.
    """
    if config.expert:
        if not isinstance(agent, ReplayAgent) or agent.name != "bc":
            raise UserError(f"an expert labels steps for BC: expected agent bc with imitation.expert, got {agent.name}")
        expert = None if load_policy is None else _load_expert(Path(config.expert), load_policy)
        share = epsilon_schedule(1.0, 0.0, config.expert_acts_fraction, max(1, num_updates))
        return with_expert_labels(agent, spec, expert, share)
    if not config.demonstrations:
        return agent
    path, with_next = Path(config.demonstrations), config.algorithm == "airl"
    steps = None if load_policy is None else load_demonstrations(path, spec, with_next)
    return with_imitation(agent, config, spec, steps)  # pyright: ignore[reportArgumentType]  rejects others


def taught_agent(
    agent: AnyAgent, config: ImitationConfig, spec: EnvSpec, network: Any, steps_per_update: int
) -> AnyAgent:
    """Returns the agent with its teacher, or the agent itself where there is none. An agent that only acts needs none.

    Args:
        agent: Agent of the experiment.
        config: settings.
        spec: Specification of the environments.
        network: Network of the agent: a NetworkConfig or an ActorCritic.
        steps_per_update: env steps of an update.

    Raises:
        UserError: If the teacher's network does not fit, or see `with_teacher`.
    """
    if not config.teacher:
        return agent
    squash = network.squash if isinstance(network, NetworkConfig) else None
    net, params = load_teacher(Path(config.teacher), spec, squash)
    teacher = Teacher(net, params, config.teacher_coef, -(-config.teacher_env_steps // steps_per_update))
    if not isinstance(agent, Agent) or not isinstance(network, NetworkConfig | ActorCritic):
        raise UserError(f"a teacher needs one policy of PPO, A2C or IMPALA: got {agent.name}")
    return with_teacher(agent, bound_network(network, spec), teacher, spec)


def load_teacher(path: Path, spec: EnvSpec, squash: bool | None = None) -> tuple[ActorCritic, Params]:
    """Returns the network and the parameters of a run's policy.

    Args:
        path: run directory, checkpoint, or "RUN@TAG".
        spec: Specification of the environments in which it teaches.
        squash: whether the student squashes its actions; None if unknown.

    Raises:
        UserError: If there is no such run, or its policy is not one network that fits these environments.
    """
    try:
        saved = read_saved_run(path)
        network = from_json(NetworkConfig, saved.metadata.get("experiment", {}).get("network") or {})
        has_arrays = any(isinstance(leaf, ArraySpec) for leaf in leaves(spec.action))
        if has_arrays and squash is not None and network.squash != squash:
            # Their Gaussians would be compared, which are of actions before tanh where actions are squashed.
            raise UserError(f"network.squash is {network.squash}, that of the student {squash}: use the same")
        net = bound_network(network, spec)
        shapes = jax.eval_shape(net.init, jax.random.key(0))
        template = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        return net, unflatten(template, saved.arrays, f"{LEARNER}.params")
    except CorruptCheckpointError as error:
        raise UserError(f"imitation.teacher: damaged checkpoint {error}") from error
    except UserError as error:
        raise UserError(
            f"imitation.teacher: expected a run of PPO, A2C or IMPALA in environments with these observations and actions, without "
            f"normalization; {path}: {error}"
        ) from error


def _load_expert(path: Path, load_policy: Callable[[Path], Any]) -> Expert:
    try:
        loaded = load_policy(path)
    except UserError as error:
        raise UserError(f"imitation.expert: {error}") from error
    if jax.tree.leaves(loaded.agent.initial_agent_state(1)):
        raise UserError(f"{path} has a memory: expected an expert whose action depends on one observation alone")
    return Expert(loaded.agent.act, jax.device_get(loaded.params))


def load_demonstrations(path: Path, spec: EnvSpec, with_next: bool = False) -> Steps:
    """Returns all env steps of a dataset, also what follows them if `with_next`; raises UserError as `imitating_agent` does."""
    dataset = open_dataset(path)
    recorded = dataset.manifest.spec
    if not (same_values(spec.observation, recorded.observation) and same_actions(spec.action, recorded.action)):
        raise UserError(
            f"{path} has another observation or action than {spec.env_id}: expected demonstrations in this environment, got those "
            f"in {recorded.env_id}"
        )
    steps = dataset.steps
    valid = np.asarray(steps.valid)
    # Measured before anything is copied: a dataset may be larger than the memory.
    sizes = [_row_bytes(leaf) for tree in (steps.observation, steps.action) for leaf in leaves(tree)]
    if with_next:
        sizes += [_row_bytes(leaf) for tree in (steps.observation, steps.terminated) for leaf in leaves(tree)]
    size = sum(sizes) * int(np.count_nonzero(valid))
    if size > _MAX_BYTES:
        raise UserError(
            f"{path}: demonstrations are a part of the compiled update: expected at most {_MAX_BYTES / 2**20:.0f} MiB, got "
            f"{size / 2**20:.0f}; jaxsrl dataset merge {path} --best 0.1 --out SMALLER takes the best episodes"
        )
    observation = map_leaves(lambda leaf: np.asarray(leaf[:-1])[valid], steps.observation)
    action = map_leaves(lambda leaf: np.asarray(leaf)[valid], steps.action)
    if not with_next:
        return Steps(observation, action)
    following = map_leaves(lambda leaf: np.asarray(leaf[1:])[valid], steps.observation)
    return Steps(observation, action, following, np.asarray(steps.terminated)[valid])


def _row_bytes(leaf: Any) -> int:
    """Returns the bytes of one step of one row of an array [S, R, ...]."""
    return leaf.dtype.itemsize * math.prod(leaf.shape[2:])
