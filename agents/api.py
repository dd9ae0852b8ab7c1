"""The contract that every algorithm keeps and every plan relies on.

Letters used in all shapes: T = rollout_length, B = rows (environments), A = num_actions.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import jax

from agents.binding import Binding
from agents.settings import Nested, Unread
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec

Array = jax.Array
Observation = Any
"""An array, or nested dicts and tuples of arrays, with the structure of `EnvSpec.observation`."""
Action = Any
"""Likewise, with the structure of `EnvSpec.action`."""
Params = Any
OptState = Any
AgentState = Any
Metrics = dict[str, Array]
RETURN_TO_GO, EPISODE_STEP = "return_to_go", "episode_step"
"""Extras that `Replay.whole_episodes` describes: the sum of rewards from a step to the end of its episode, and the number of
earlier steps of the episode."""
Summary = dict[str, Any]
"""Metrics of a batch, and under other names values for `GradientSteps.finish`, which removes them."""


class Mode(enum.Enum):
    """Choice among actions by `act`."""

    SAMPLE = "sample"
    GREEDY = "greedy"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trajectory:
    """T steps of B rows, time-major.

    Episodes end as in Gymnasium's NEXT_STEP autoreset: after a step with `terminated` or `truncated`, the terminal
    observation is `observation[t + 1]`; the following step only resets, ignores its action and has `valid=False`.

    Attributes:
        observation: [T+1, B, ...] each leaf; the last one is what the next trajectory starts with.
        is_first: [T+1, B] bool, `observation[t]` begins an episode.
        action: [T, B, ...] each leaf.
        reward: [T, B] float32, environment reward units.
        terminated: [T, B] bool, the episode ended by the task's own rules: no value beyond.
        truncated: [T, B] bool, the episode was cut: bootstrap from `observation[t + 1]`.
        valid: [T, B] bool, False where the step only reset: it must not count in any loss.
        policy_version: [T, B] int32, the parameters (number of updates) that acted.
        extras: what the agent's `act` added to each step, [T, B, ...] each.
        agent_state: [B, ...] each, what `act` was given at step 0: the recurrent state before it is reset where `is_first[0]`;
            () for a memoryless policy.
    """

    observation: Observation
    is_first: Array
    action: Action
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    policy_version: Array
    extras: dict[str, Array]
    agent_state: AgentState = ()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LearnerState:
    """All that `update` carries from one call to the next.

    Attributes:
        params: what `act` needs; published to inference.
        opt_state: the optimizer's state.
        num_updates: int32 scalar; equals the policy version of `params`.
        extra: whatever else an algorithm carries (networks that only learning needs, target networks, statistics); () if
            nothing. It is never published.
    """

    params: Params
    opt_state: OptState
    num_updates: Array
    extra: Any = ()


@dataclasses.dataclass(frozen=True)
class OnPolicy:
    """`update` wants each trajectory once, in the order it was collected.

    Attributes:
        max_lag: Largest policy lag, in updates, that the algorithm corrects: 0 without an importance ratio. None: any.
    """

    max_lag: int | None = None


@dataclasses.dataclass(frozen=True)
class ReplayConfig(Nested):
    """Sizes, rates and priorities of a replay buffer.

    One env step is one step of one row.

    Attributes:
        capacity: Env steps kept over all rows, rounded down to whole trajectories.
        batch_size: N, windows of a sample. One gradient step learns from one sample.
        min_size: Env steps inserted before the first gradient step.
        gradient_steps_per_env_step: Gradient steps for each env step after the first `min_size`, whatever the batch size. After i
            env steps exactly floor((i - min_size) * gradient_steps_per_env_step) have been taken.
        priority_exponent: alpha of proportional prioritization (Schaul et al. 2016, eq. 1). 0 samples uniformly.
        priority_offset: Constant added to every priority, so that none is 0.
        priority_delay: Gradient steps between computing priorities and the first sample that uses them. This many samples can
            be sampled ahead of the learner.
    """

    capacity: int = 100_000
    batch_size: int = 256
    min_size: int = 1_000
    gradient_steps_per_env_step: float = 1 / 32
    priority_exponent: float = 0.0
    priority_offset: float = 1e-6
    priority_delay: int = 0

    def __post_init__(self) -> None:
        for name in ("capacity", "batch_size", "min_size"):
            if getattr(self, name) < 1:
                raise UserError(f"replay.{name} must be at least 1: got {getattr(self, name)}")
        if not self.gradient_steps_per_env_step > 0.0:
            raise UserError(
                f"replay.gradient_steps_per_env_step must be positive: got {self.gradient_steps_per_env_step}"
            )
        if not 0.0 <= self.priority_exponent <= 1.0:
            raise UserError(f"replay.priority_exponent must lie in [0, 1]: got {self.priority_exponent}")
        if not self.priority_offset > 0.0:
            raise UserError(f"replay.priority_offset must be positive: got {self.priority_offset}")
        if self.priority_delay < 0:
            raise UserError(f"replay.priority_delay must not be negative: got {self.priority_delay}")

    def unread(self) -> Unread:
        """Returns the rules for fields without effect."""
        yield not self.priority_exponent, "priority_exponent is 0", "priority_offset"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sample:
    """N windows of L steps, sampled from replay.

    Attributes:
        trajectory: Time-major: [L+1, N * A, ...] observations, [L, N * A, ...] other leaves, where A is
            `Replay.agents_per_window`; the rows of a window are adjacent. Episodes end within a window as within any trajectory.
            A window may start with a step that only resets (`valid` is False) and does not count.
        probability: [N] float32, probability of each window in one draw.
        num_windows: int32 scalar, windows that could be sampled.
    """

    trajectory: Trajectory
    probability: Array
    num_windows: Array


class SyncFn(Protocol):
    """Returns a learner state after its `num_updates` increased, with acting parameters of that number (an exploration rate)."""

    def __call__(self, state: LearnerState) -> LearnerState: ...


class InitialPriorityFn(Protocol):
    """Returns initial priorities of windows from values that `act` recorded (Horgan et al. 2018, Ape-X).

    Args: steps: a trajectory of T + L - 1 steps, with () instead of observations. Returns: [T, B] float32, not negative, of the
    windows that start at its first T steps.
    """

    def __call__(self, steps: Trajectory) -> Array: ...


class SampleFn(Protocol):
    """Returns a transformed sample, which replaces the sample in the update.

    Args: params: the newest; extra: `LearnerState.extra` of the agent, with its target network; sample; key, consumed.
    """

    def __call__(self, params: Params, extra: Any, sample: Sample, key: Array) -> Sample: ...


@dataclasses.dataclass(frozen=True)
class Replay:
    """Declaration that `update` takes a `Sample`: windows of past trajectories, as often as `config` says.

    Attributes:
        config: Sizes, rates and priorities.
        sequence_length: L, steps of a window.
        window_start: Windows start at "any" step, or only at the start of an "episode".
        stride: Steps between the starts of two windows of a row (of "any"). Windows overlap by `sequence_length - stride`. A
            recurrent policy needs a multiple of the rollout length T, because its state is stored at the start of trajectories.
        agents_per_window: A, adjacent rows that are sampled together (the agents of a team).
        sync_acting_params: Called for every new version, with or without a gradient step.
        initial_priority: Priorities of new windows; None gives them the highest priority so far.
        whole_episodes: The extras `RETURN_TO_GO` and `EPISODE_STEP` are those of whole recorded episodes, in place of what `act`
            returned, and samples have no agent state. Such an agent learns from datasets alone.
        transforms: Steps between sampling and learning, in order (SRL's buffer worker: augment, reanalyze, post-process).
    """

    config: ReplayConfig
    sequence_length: int
    window_start: Literal["any", "episode"] = "any"
    stride: int = 1
    agents_per_window: int = 1
    sync_acting_params: SyncFn | None = None
    initial_priority: InitialPriorityFn | None = None
    whole_episodes: bool = False
    transforms: tuple[SampleFn, ...] = ()

    def __post_init__(self) -> None:
        if self.config.min_size > self.config.capacity:
            raise UserError(
                f"replay.min_size must not exceed replay.capacity, or learning would never start: got {self.config.min_size} "
                f"and {self.config.capacity}"
            )


class InitFn(Protocol):
    """First learner state. `key` is consumed."""

    def __call__(self, key: Array) -> LearnerState: ...


class InitialAgentStateFn(Protocol):
    """Initial recurrent state of all rows of a run; () for a policy without memory.

    Nested dicts or tuples of [num_rows, ...] arrays. `act` itself resets rows to it where `is_first`. Rows may differ, for example
    by an exploration rate of their own: code that acts for some rows takes theirs from the state of all.
    """

    def __call__(self, num_rows: int) -> AgentState: ...


class ActFn(Protocol):
    """Chooses actions for rows.

    Args: params; observation [B, ...] each leaf; agent_state; is_first [B] bool; keys [B] typed PRNG keys, one a row,
    consumed; mode (static). Returns: action [B, ...] each leaf, extras ([B, ...] each), next agent_state.
    """

    def __call__(
        self,
        params: Params,
        observation: Observation,
        agent_state: AgentState,
        is_first: Array,
        keys: Array,
        mode: Mode,
    ) -> tuple[Action, dict[str, Array], AgentState]: ...


class LogProbFn(Protocol):
    """Log-probabilities [N] in nats of actions [N, ...] under the acting policy, given its observations [N, ...]."""

    def __call__(self, params: Params, observation: Observation, action: Action) -> Array: ...


class AdvantageFn(Protocol):
    """Generalized advantages of a trajectory; `extra` is that of the learner state.

    Returns: [T, B] float32, 0 where a step does not count; [T, B] bool, whether it counts. The agent learns from such steps alone.
    """

    def __call__(self, params: Params, extra: Any, batch: Trajectory) -> tuple[Array, Array]: ...


class UpdateFn(Protocol):
    """One learning step on one batch. `key` is consumed; `num_updates` grows by one. Metrics are float32 scalars."""

    def __call__(self, state: LearnerState, batch: Trajectory, key: Array, /) -> tuple[LearnerState, Metrics]: ...


class SampleUpdateFn(Protocol):
    """One gradient step on one sample. `key` is consumed; `num_updates` stays, which counts trajectories (see `SyncFn`).

    Returns: the state; metrics, float32 scalars; new priorities of the windows, [N] float32, not negative, before
    `ReplayConfig.priority_exponent`.
    """

    def __call__(self, state: LearnerState, sample: Sample, key: Array) -> tuple[LearnerState, Metrics, Array]: ...


class PredictObservationsFn(Protocol):
    """Predicts the observations of a window that it does not see, from its actions (open loop). Only world models can.

    Args: params; extra: `LearnerState.extra` of the agent; window: a trajectory with its agent state; seen [T+1, B] bool, the
    observations that may be used: others have no effect; key, consumed.

    Returns: real and predicted values of each leaf of the observation by name, in the same form. They are numbers [T+1, B, V] in
    the environment's units, a category as probabilities; or images [T+1, B, H, W, C] in [0, 1]. Seen ones are reconstructed.
    """

    def __call__(
        self, params: Params, extra: Any, window: Trajectory, seen: Array, key: Array
    ) -> dict[str, tuple[Array, Array]]: ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Progress:
    """Values that one gradient step of an update hands to the next.

    Attributes:
        params: Newest parameters.
        opt_state: State of the optimizer.
        num_updates: int32 scalar, `LearnerState.num_updates` at the start of the update: schedules are functions of it.
        num_skipped: int32 scalar, steps of this update that the algorithm's own rule skipped (PPO: `target_kl`). Once it is
            positive, the remaining steps are skipped too.
    """

    params: Params
    opt_state: OptState
    num_updates: Array
    num_skipped: Array


class GradientSteps(NamedTuple):
    """The same update in parts, which an agent may offer so that the plan `central` can apply gradients on a server.

    Gradients are computed by one device and applied by another. No other plan uses it; `Agent.update` does not depend on it.

    Attributes:
        num_steps: Gradient steps of one update.
        prepare: (params, extra, batch, key, num_updates) -> (prepared, summary). Inputs of all gradients, any pytree whose
            arrays keep B in its place; and for `finish` metrics, and by other names any pytrees without B. `key` is consumed.
        gradient: (params, prepared, step) -> (gradient, metrics) for step number 0 <= step < num_steps, an int32 scalar.
        apply: (progress, gradient, metrics) -> progress, after one optimizer step or a skipped one.
        finish: (state, progress, summary, step_metrics [num_steps] each) -> (state, metrics), `num_updates` one higher. With
            replicas at their own pace, `state` and `progress` are the newest, and other updates may have been finished since
            this one started: `finish` must merge the batch into the state and not overwrite it.
    """

    num_steps: int
    prepare: Callable[[Params, Any, Trajectory, Array, Array], tuple[Any, Summary]]
    gradient: Callable[[Params, Any, Array], tuple[Params, Metrics]]
    apply: Callable[[Progress, Params, Metrics], Progress]
    finish: Callable[[LearnerState, Progress, Summary, Metrics], tuple[LearnerState, Metrics]]


class Agent(NamedTuple):
    """An algorithm bound to its configuration and to an environment's spec: pure functions and declarations.

    `gradient_steps` is the same update as `update` in parts; None if the agent does not offer it. `groups` is the same update
    as independent updates of several policies (`agents.transforms.multi_policy.LearningGroup`); () for a single one.
    `bind_replay` is for several policies of which some learn from replay, and None otherwise. It is called once with
    (with_buffer, shapes of a batch) and returns the agent that can update: `with_buffer(agent, shapes of its own batch)` makes an
    Agent of each ReplayAgent in it. `log_prob` is None for policies with memory, and where the agent does not offer it. `advantage`
    is None where the agent does not offer it. `binding` is None for agents whose constructor does not keep it.
    """

    name: str
    init: InitFn
    initial_agent_state: InitialAgentStateFn
    act: ActFn
    update: UpdateFn
    extras: Mapping[str, ArraySpec]
    data: OnPolicy
    gradient_steps: GradientSteps | None = None
    groups: tuple[Any, ...] = ()
    bind_replay: Callable[[Any, Trajectory], Any] | None = None
    log_prob: LogProbFn | None = None
    advantage: AdvantageFn | None = None
    binding: Binding | None = None


class ReplayAgent(NamedTuple):
    """An algorithm that learns from samples of a replay buffer, bound as an `Agent` is.

    `jaxsrl.replay` makes an Agent of it, whose update inserts a trajectory, draws, and takes as many gradient steps as are due.
    `predict_observations` is for evaluation; None if the agent does not offer it. `binding` is that of an `Agent`.
    """

    name: str
    init: InitFn
    initial_agent_state: InitialAgentStateFn
    act: ActFn
    update: SampleUpdateFn
    extras: Mapping[str, ArraySpec]
    data: Replay
    predict_observations: PredictObservationsFn | None = None
    binding: Binding | None = None


AnyAgent = Agent | ReplayAgent
"""What has parameters, acts and learns; however it learns."""
