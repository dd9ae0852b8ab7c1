"""What the contract tests give the agents that learn from replay: their specs, configurations and samples."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import ReplayAgent, ReplayConfig, Sample, Trajectory
from agents.catalog import AGENTS
from agents.networks.config import NetworkConfig
from agents.search.game import GameFn, GameStep
from agents.world_models.sizes import WorldModelConfig
from envpool_bridge.spec.specs import AgentSpec, ArraySpec, DiscreteSpec, EnvSpec

REPLAYING = sorted(
    name for name, entry in AGENTS.items() if "replay" in {field.name for field in dataclasses.fields(entry.config)}
)
CONTINUOUS = {"awac", "bcq", "cql", "ddpg", "iql", "maddpg", "rebrac", "sac", "td3", "td3_bc"}
TEAMS = {"vdn", "qmix", "maddpg"}
SIZES: dict[str, Any] = {"hidden_sizes": (8,)}
NETWORKS: dict[str, dict[str, Any]] = {"dreamer": {}, "r2d2": {**SIZES, "core": "gru", "core_size": 4}}
SMALL = {
    "decision_transformer": {"context_length": 3, "num_layers": 1, "embedding_size": 8},
    "bcq": {"generator_hidden_sizes": (8,), "num_acting_candidates": 5},
    "r2d2": {"burn_in": 2, "sequence_length": 2, "n_step": 1, "stride": 2},
    "dreamer": {
        "model": WorldModelConfig(deter=16, hidden=8, classes=4, units=8, stoch=4, blocks=2),
        "burn_in": 1,
        "sequence_length": 3,
        "stride": 1,
        "imagination_length": 2,
    },
    "alphazero": {"game": "tests.contract.replaying_agents:toy_game", "window": 4},
}
WINDOWS, TEAM = 6, 2
OBSERVATION = ArraySpec((3,), "float32")
REWARDED = {"last_reward": ArraySpec((), "float32"), "observation": OBSERVATION}
GAME = {"action_mask": OBSERVATION, "board": OBSERVATION, "state": OBSERVATION}


def toy_game(env_id: str) -> GameFn:
    """Rules without an end: a move changes the state and the board."""
    del env_id

    def play(observation: Any, move: Any) -> GameStep:
        changed = observation["state"].at[move].add(1.0)
        after = {"action_mask": jnp.ones(3), "board": changed, "state": changed}
        return GameStep(after, changed.sum(), jnp.zeros((), bool))

    return play


def spec_of(name: str) -> EnvSpec:
    """Of an environment that the agent is for."""
    action = ArraySpec((2,), "float32", -2.0, 2.0) if name in CONTINUOUS else DiscreteSpec(3)
    if name == "alphazero":
        return EnvSpec("test", GAME, action, action_mask=("action_mask",))
    if name == "decision_transformer":
        return EnvSpec("test", REWARDED, action)
    if name not in TEAMS:
        return EnvSpec("test", OBSERVATION, action)
    members = tuple(AgentSpec(member, OBSERVATION, action) for member in ("a", "b"))
    return EnvSpec("test", OBSERVATION, action, agents=members)


def agent_of(name: str, **changes) -> ReplayAgent:
    """The agent of the catalogue with a small network."""
    settings = {"replay": ReplayConfig(batch_size=WINDOWS), "total_updates": 10, **SMALL.get(name, {}), **changes}
    config = AGENTS[name].config(**settings)
    network = NetworkConfig(**NETWORKS.get(name, SIZES))
    return AGENTS[name].make(config, spec_of(name), network)


def sample_for(name: str, agent: ReplayAgent, seed: int = 0) -> Sample:
    """Windows with ends of both kinds, steps that only reset, and one that begins with such a step."""
    rng = np.random.default_rng(seed)
    steps, team = agent.data.sequence_length, agent.data.agents_per_window
    rows = WINDOWS * team
    ended = np.repeat(rng.random((steps, WINDOWS)) < 0.2, team, axis=1)
    ended[1:] &= ~ended[:-1]
    terminated = ended & np.repeat(rng.random((steps, WINDOWS)) < 0.5, team, axis=1)
    valid = np.concatenate([np.ones((1, rows), bool), ~ended[:-1]])
    valid[0, :team], ended[0, :team], terminated[0, :team] = False, False, False
    observation: Any = rng.normal(size=(steps + 1, rows, 3)).astype(np.float32)
    if name == "alphazero":
        observation = {"action_mask": np.ones_like(observation), "board": observation, "state": observation}
    if name == "decision_transformer":
        observation = {"last_reward": observation[..., 0], "observation": observation}
    continuous = rng.uniform(-2, 2, (steps, rows, 2)).astype(np.float32)
    discrete = rng.integers(0, 3, (steps, rows)).astype(np.int32)
    extras = {key: rng.normal(size=(steps, rows, *spec.shape)).astype(spec.dtype) for key, spec in agent.extras.items()}
    reward = np.repeat(rng.normal(size=(steps, WINDOWS)).astype(np.float32), team, axis=1)
    # Arrays of NumPy, which the annotations do not allow.
    make_trajectory: Any = Trajectory
    make_sample: Any = Sample
    trajectory = make_trajectory(
        observation=observation,
        is_first=np.concatenate([np.zeros((1, rows), bool), ~valid]),
        action=continuous if name in CONTINUOUS else discrete,
        reward=reward,
        terminated=terminated,
        truncated=ended & ~terminated,
        valid=valid,
        policy_version=np.zeros((steps, rows), np.int32),
        extras=extras,
        agent_state=jax.device_get(agent.initial_agent_state(rows)),
    )
    probability = rng.uniform(0.001, 0.01, WINDOWS).astype(np.float32)
    return make_sample(trajectory, probability, np.int32(400))
