"""States of a world model in windows of replay, and as an agent stores them while it acts."""

import jax
import jax.numpy as jnp

from agents.api import AgentState, Array, Params, Trajectory
from agents.world_models.model import Observed, WorldModel, observe
from agents.world_models.rssm import Latent


def initial_state(model: WorldModel, num_rows: int) -> AgentState:
    """Returns the agent state [B, ...] before the first step; `store_state` says what it contains."""
    return {
        "deter": jnp.zeros((num_rows, model.sizes.deter), jnp.float32),
        "stoch": jnp.full((num_rows, model.sizes.stoch), -1, jnp.int32),
        "action": jnp.zeros((num_rows, model.actions.size), jnp.float32),
    }


def store_state(latent: Latent, action: Array) -> AgentState:
    """Returns the agent state: the recurrent state, the numbers of the sampled classes (-1: none yet), and the action taken.

    Args:
        latent: [B, ...].
        action: [B, F] vectors of the actions that were taken there.
    """
    return {
        "deter": latent.deter,
        "stoch": jnp.argmax(latent.stoch, axis=-1).astype(jnp.int32),
        "action": action,
    }


def load_latent(model: WorldModel, agent_state: AgentState) -> Latent:
    """Returns the latent state [B, ...] of an agent state."""
    return Latent(agent_state["deter"], jax.nn.one_hot(agent_state["stoch"], model.sizes.classes))


def observe_window(model: WorldModel, params: Params, window: Trajectory, burn_in: int, key: Array) -> Observed:
    """Returns the states [L - burn_in, N, ...] after each learned step of a window.

    The observations before renew the state that was stored, without a gradient. The first one is never learned: what came with it
    is not in the window.

    Args:
        model: The bound model.
        params: Parameters of the model.
        window: [L(+1), N, ...] windows.
        burn_in: Steps that are not learned.
        key: Key of the samples, consumed.
    """
    stored, parts = window.agent_state, (slice(burn_in + 1), slice(burn_in + 1, None))
    action = jnp.concatenate([stored["action"][None], model.actions.encode(window.action)])
    noise = jax.random.gumbel(key, (*action.shape[:2], model.sizes.stoch, model.sizes.classes))
    inputs = (action, window.is_first, window.observation, noise)
    early, learned = (jax.tree.map(lambda leaf, part=part: leaf[part], inputs) for part in parts)
    renewed = observe(model, params, load_latent(model, stored), *early).latent
    start: Latent = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf[-1]), renewed)
    return observe(model, params, start, *learned)
