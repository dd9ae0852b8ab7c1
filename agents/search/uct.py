"""UCT with rollouts and proved outcomes, for games with exact rules and other models whose episodes end.

Each simulation follows the upper confidence bounds to a state with an untried action, tries one, and plays on by the model's prior
policy, uniform in games without a network. Outcomes of ended episodes are proved; a state is proved when all its actions are, or
one of them proves the best return. Proved actions are not simulated again.

Sources: Kocsis and Szepesvari 2006, "Bandit based Monte-Carlo planning" (the bound); Winands, Bjornsson and Saito 2008,
"Monte-Carlo tree search solver" (proved outcomes).
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agents.api import Array, Params
from agents.search.model import Latent, ModelStep, Root, SearchResult, StepFn, legal_actions, step_rows
from envpool_bridge.errors import UserError

_NEVER = -jnp.inf


@dataclasses.dataclass(frozen=True)
class UCTConfig:
    """Settings of the search.

    Attributes:
        num_simulations: states added to the tree, at most; at least 1.
        exploration: weight of the bound, c.
        rollout_length: longest rollout, in actions; the model's value counts after it. 0 for no rollouts.
        best_return: largest return of an episode from the root, which needs no better one to be proved.
    """

    num_simulations: int = 200
    exploration: float = 1.4142
    rollout_length: int = 256
    best_return: float = 1.0

    def __post_init__(self) -> None:
        if self.num_simulations < 1:
            raise UserError(f"uct.num_simulations must be at least 1: got {self.num_simulations}")
        if self.rollout_length < 0:
            raise UserError(f"uct.rollout_length must be at least 0: got {self.rollout_length}")


class _Tree(NamedTuple):
    """Trees of B rows with up to M states; state 0 is the root. Values are those of the player to move.

    Attributes:
        latent: [B, M, ...] a leaf.
        logits: [B, M, A] of the prior policy.
        child: [B, M, A] int32, state after each action; 0 for an untried one.
        visits: [B, M, A] int32.
        total: [B, M, A] sum of the values of the simulations of each action.
        parent: [B, M] int32.
        action: [B, M] int32, action that leads to the state.
        reward: [B, M] of that action.
        discount: [B, M] of that action.
        proved: [B, M] bool.
        outcome: [B, M] proved value; the best proved one of its actions, if the state itself is not proved.
    """

    latent: Latent
    logits: Array
    child: Array
    visits: Array
    total: Array
    parent: Array
    action: Array
    reward: Array
    discount: Array
    proved: Array
    outcome: Array


def uct_search(step: StepFn, params: Params, root: Root, keys: Array, config: UCTConfig) -> SearchResult:
    """Searches N rows.

    Args:
        step: Step of the model.
        params: Parameters of the model.
        root: Root of the rows; its value is not used.
        keys: [N] typed keys.
        config: settings.

    Returns:
        The action of the best proved value if the root is proved; otherwise the most visited action among those that are not proved
        to be worse than another proved one. The policy is the visits' share.
    """

    def simulate(number: Array, tree: _Tree) -> _Tree:
        step_keys = jax.vmap(partial(jax.random.split, num=3))(jax.vmap(jax.random.fold_in, (0, None))(keys, number))
        is_open = ~tree.proved[:, 0]
        node, action = _select(tree, step_keys[:, 0], config.exploration)
        after = step_rows(step, params, _at(tree.latent, node), action, step_keys[:, 1])
        value = _roll_out(step, params, after, step_keys[:, 2], config.rollout_length)
        tree = _add(tree, number + 1, node, action, after, is_open)
        return _back_up(tree, number + 1, value, is_open, config.best_return)

    tree = jax.lax.fori_loop(0, config.num_simulations, simulate, _plant(root, config.num_simulations + 1))
    return _summarize(tree)


def _plant(root: Root, size: int) -> _Tree:
    num_rows, num_actions = root.logits.shape
    per_state = partial(jnp.zeros, (num_rows, size))
    per_action = partial(jnp.zeros, (num_rows, size, num_actions))
    first = lambda leaf: jnp.zeros((num_rows, size, *leaf.shape[1:]), leaf.dtype).at[:, 0].set(leaf)  # noqa: E731
    return _Tree(
        latent=jax.tree.map(first, root.latent),
        logits=first(root.logits),
        child=per_action(jnp.int32),
        visits=per_action(jnp.int32),
        total=per_action(jnp.float32),
        parent=per_state(jnp.int32),
        action=per_state(jnp.int32),
        reward=per_state(jnp.float32),
        discount=per_state(jnp.float32),
        proved=per_state(bool),
        outcome=jnp.full((num_rows, size), _NEVER),
    )


def _at(tree: Latent, node: Array) -> Latent:
    """Returns the leaves of one state of each row."""
    rows = jnp.arange(node.shape[0])
    return jax.tree.map(lambda leaf: leaf[rows, node], tree)


def _proved_values(tree: _Tree, node: Array) -> tuple[Array, Array]:
    """Returns which actions of a state of each row are proved, and their values; -inf for others. [B, A] both."""
    rows = jnp.arange(node.shape[0])[:, None]
    child = _at(tree.child, node)
    proved = (child > 0) & tree.proved[rows, child]
    value = tree.reward[rows, child] + jnp.where(
        tree.discount[rows, child] == 0.0, 0.0, tree.discount[rows, child] * tree.outcome[rows, child]
    )
    return proved, jnp.where(proved, value, _NEVER)


def _select(tree: _Tree, keys: Array, exploration: float) -> tuple[Array, Array]:
    """Returns a state of each row and an untried legal action of it. Rows with a proved root get any."""

    def untried(node: Array) -> Array:
        return legal_actions(_at(tree.logits, node)) & (_at(tree.child, node) == 0)

    def is_inside(node: Array) -> Array:
        return ~_at(tree.proved, node) & ~untried(node).any(-1)

    def descend(node: Array) -> Array:
        visits, (proved, _) = _at(tree.visits, node), _proved_values(tree, node)
        mean = _at(tree.total, node) / jnp.maximum(visits, 1)
        bound = exploration * jnp.sqrt(jnp.log(visits.sum(-1, keepdims=True)) / jnp.maximum(visits, 1))
        score = jnp.where((_at(tree.child, node) > 0) & ~proved, mean + bound, _NEVER)
        return jnp.where(is_inside(node), _at(tree.child, node)[jnp.arange(len(node)), score.argmax(-1)], node)

    start = jnp.zeros(tree.logits.shape[0], jnp.int32)
    node = jax.lax.while_loop(lambda node: is_inside(node).any(), descend, start)
    action = jax.vmap(jax.random.categorical)(keys, jnp.where(untried(node), _at(tree.logits, node), _NEVER))
    return node, action.astype(jnp.int32)


def _roll_out(step: StepFn, params: Params, after: ModelStep, keys: Array, length: int) -> Array:
    """Returns the value of the state after a step: [B], of a rollout by the prior policy."""

    def is_running(carry: tuple[Array, ModelStep, Array, Array]) -> Array:
        number, _, factor, _ = carry
        return (number < length) & (factor != 0.0).any()

    def play(carry: tuple[Array, ModelStep, Array, Array]) -> tuple[Array, ModelStep, Array, Array]:
        number, last, factor, value = carry
        step_keys = jax.vmap(jax.random.split)(jax.vmap(jax.random.fold_in, (0, None))(keys, number))
        action = jax.vmap(jax.random.categorical)(step_keys[:, 0], last.logits).astype(jnp.int32)
        new = step_rows(step, params, last.latent, action, step_keys[:, 1])
        value = value + jnp.where(factor == 0.0, 0.0, factor * new.reward)
        return number + 1, new, factor * new.discount, value

    factor = jnp.where(after.discount == 0.0, 0.0, 1.0)
    carry = (jnp.int32(0), after, factor, jnp.zeros_like(after.reward))
    _, last, factor, value = jax.lax.while_loop(is_running, play, carry)
    return value + jnp.where(factor == 0.0, 0.0, factor * last.value)


def _add(tree: _Tree, new: Array, node: Array, action: Array, after: ModelStep, is_open: Array) -> _Tree:
    """Returns the trees with the state `new` of each open row. Other rows get a state without a parent's link."""
    rows = jnp.arange(node.shape[0])
    is_end = after.discount == 0.0
    link = jnp.where(is_open, new, tree.child[rows, node, action])
    return tree._replace(
        latent=jax.tree.map(lambda leaf, value: leaf.at[:, new].set(value), tree.latent, after.latent),
        logits=tree.logits.at[:, new].set(after.logits),
        child=tree.child.at[rows, node, action].set(link),
        parent=tree.parent.at[:, new].set(node),
        action=tree.action.at[:, new].set(action),
        reward=tree.reward.at[:, new].set(after.reward),
        discount=tree.discount.at[:, new].set(after.discount),
        proved=tree.proved.at[:, new].set(is_end),
        outcome=tree.outcome.at[:, new].set(jnp.where(is_end, 0.0, _NEVER)),
    )


def _back_up(tree: _Tree, new: Array, value: Array, is_open: Array, best_return: float) -> _Tree:
    """Returns the trees with the value of a simulation, and what it proves, on the path to the root."""
    rows = jnp.arange(value.shape[0])

    def is_below(carry: tuple[Array, Array, _Tree]) -> Array:
        return (carry[0] > 0).any()

    def climb(carry: tuple[Array, Array, _Tree]) -> tuple[Array, Array, _Tree]:
        node, value, tree = carry
        moves = node > 0
        parent, action = _at(tree.parent, node), _at(tree.action, node)
        discount = _at(tree.discount, node)
        value = _at(tree.reward, node) + jnp.where(discount == 0.0, 0.0, discount * value)
        tree = tree._replace(
            visits=tree.visits.at[rows, parent, action].add(moves.astype(jnp.int32)),
            total=tree.total.at[rows, parent, action].add(jnp.where(moves, value, 0.0)),
        )
        proved, values = _proved_values(tree, parent)
        best = values.max(-1)
        is_proved = (proved | ~legal_actions(_at(tree.logits, parent))).all(-1) | (best >= best_return)
        tree = tree._replace(
            proved=tree.proved.at[rows, parent].set(jnp.where(moves, is_proved, _at(tree.proved, parent))),
            outcome=tree.outcome.at[rows, parent].set(jnp.where(moves, best, _at(tree.outcome, parent))),
        )
        value = jnp.where(is_proved, best, jnp.maximum(value, best))
        return jnp.where(moves, parent, 0), value, tree

    start = jnp.where(is_open, new, 0)
    return jax.lax.while_loop(is_below, climb, (start, value, tree))[2]


def _summarize(tree: _Tree) -> SearchResult:
    root = jnp.zeros(tree.logits.shape[0], jnp.int32)
    visits, (proved, values) = tree.visits[:, 0], _proved_values(tree, root)
    mean = tree.total[:, 0] / jnp.maximum(visits, 1)
    best = values.max(-1, keepdims=True)
    # An action that is proved worse than another one is never taken, however often it was visited.
    preferred = jnp.where(proved & (values < best), _NEVER, visits.astype(jnp.float32))
    preferred = jnp.where(legal_actions(tree.logits[:, 0]), preferred, _NEVER)
    # A proved value stands against means: an action is taken for its visits only if its mean is not below it.
    preferred = jnp.where(~proved & (mean < best), preferred - visits.sum(-1, keepdims=True), preferred)
    is_proved = tree.proved[:, 0]
    action = jnp.where(is_proved, values.argmax(-1), preferred.argmax(-1))
    total = visits.sum(-1, keepdims=True)
    value = jnp.where(is_proved, tree.outcome[:, 0], tree.total[:, 0].sum(-1) / total[:, 0])
    return SearchResult(action.astype(jnp.int32), visits / total, value, visits)
