"""Growth of search trees, all rows at once.

A tree equals that of `mctx.search` for a single row with the same key. Where the batched loops of mctx copy all states of all rows
at each level of a path, these update the states on the path. The trees and the rules that select actions are mctx's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.model import Latent, ModelStep, Root, StepFn, legal_actions, step_rows

Tree = Any
"""`mctx.Tree` of N rows, whose fields are hidden from type checkers. State 0 is the root, and simulation k adds the state k + 1."""
SelectFn = Callable[[Array, Tree, Array, Array], Array]
"""Maps (key, tree, state, depth) of one row to an action; the root has depth 0."""
_Tree: Any = mctx.Tree
_NONE = -1


class Selection(NamedTuple):
    """Rules that select actions.

    Attributes:
        inside: selects the action of a state.
        at_root: selects the root's action; `inside` if None.
        data: of the rows, a tree of [N, ...], which both find in the tree's `extra_data`.
    """

    inside: SelectFn
    at_root: SelectFn | None = None
    data: Any = None


def grow_trees(
    step: StepFn,
    params: Params,
    root: Root,
    keys: Array,
    selection: Selection,
    *,
    num_simulations: int,
    max_depth: int = 0,
) -> Tree:
    """Returns the trees of N rows after `num_simulations` simulations.

    A simulation selects actions from the root to one that was not tried, or to the largest depth. There a step of the model adds a
    state, whose value is averaged into all states above.

    Args:
        step: of the model.
        params: of the model.
        root: of the rows.
        keys: [N] typed keys.
        selection: of actions.
        num_simulations: calls of the model, at least 1.
        max_depth: longest path of actions; 0 for no limit.
    """
    limit = max_depth or num_simulations

    def simulate(number: Array, state: tuple[Array, Tree]) -> tuple[Array, Tree]:
        keys, tree = state
        keys, path_keys, step_keys = _split(keys, 3)
        parent, action = _descend(tree, _split(path_keys, 1)[0], selection, limit)
        after = step_rows(step, params, _latent(tree, parent), action, step_keys)
        return keys, _back_up(_add(tree, number + 1, parent, action, after), number + 1)

    first = keys, _plant(root, num_simulations + 1, selection.data)
    return jax.lax.fori_loop(0, num_simulations, simulate, first)[1]


def _split(keys: Array, number: int) -> Array:
    return jax.vmap(partial(jax.random.split, num=number), out_axes=1)(keys)


def _at(leaf: Array, *index: Array) -> Array:
    return leaf[(jnp.arange(leaf.shape[0]), *index)]


def _latent(tree: Tree, state: Array) -> Latent:
    return jax.tree.map(lambda leaf: _at(leaf, state), tree.embeddings)


def _plant(root: Root, size: int, data: Any) -> Tree:
    """Returns trees with room for `size` states, of which the root has one visit."""
    num_rows, num_actions = root.logits.shape
    per_state, per_action = partial(jnp.full, (num_rows, size)), partial(jnp.full, (num_rows, size, num_actions))

    def at_root(leaf: Array) -> Array:
        return jnp.zeros((num_rows, size, *leaf.shape[1:]), leaf.dtype).at[:, 0].set(leaf)

    return _Tree(
        node_visits=at_root(jnp.ones(num_rows, jnp.int32)),
        raw_values=at_root(root.value),
        node_values=at_root(root.value),
        parents=per_state(_NONE, jnp.int32),
        action_from_parent=per_state(_NONE, jnp.int32),
        children_index=per_action(_NONE, jnp.int32),
        children_prior_logits=at_root(root.logits),
        children_values=per_action(0.0, jnp.float32),
        children_visits=per_action(0, jnp.int32),
        children_rewards=per_action(0.0, jnp.float32),
        children_discounts=per_action(0.0, jnp.float32),
        embeddings=jax.tree.map(at_root, root.latent),
        root_invalid_actions=jnp.logical_not(legal_actions(root.logits)),
        extra_data=data,
    )


def _descend(tree: Tree, keys: Array, selection: Selection, max_depth: int) -> tuple[Array, Array]:
    """Returns the last state [N] of each row's path, and the action [N] selected there."""

    def choose(rule: SelectFn, keys: Array, state: Array, depth: Array) -> tuple[Array, Array]:
        keys, own = _split(keys, 2)
        return keys, jax.vmap(rule, (0, 0, 0, None))(own, tree, state, depth)

    def is_inside(depth: Array, state: Array, action: Array) -> Array:
        return (_at(tree.children_index, state, action) != _NONE) & (depth < max_depth)

    def follow(path: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        depth, keys, state, action = path
        goes_on = is_inside(depth, state, action)
        state = jnp.where(goes_on, _at(tree.children_index, state, action), state)
        keys, chosen = choose(selection.inside, keys, state, depth)
        return depth + 1, keys, state, jnp.where(goes_on, chosen, action)

    root = jnp.zeros(keys.shape[0], jnp.int32)
    keys, action = choose(selection.at_root or selection.inside, keys, root, jnp.int32(0))
    path = jnp.int32(1), keys, root, action
    _, _, state, action = jax.lax.while_loop(lambda path: is_inside(path[0], path[2], path[3]).any(), follow, path)
    return state, action


def _add(tree: Tree, new: Array, parent: Array, action: Array, after: ModelStep) -> Tree:
    """Returns the trees with the state `new` behind an action of `parent` [N]; it takes the place of one at the largest depth."""
    edge = jnp.arange(parent.shape[0]), parent, action
    return tree.replace(
        node_visits=tree.node_visits.at[:, new].set(1),
        raw_values=tree.raw_values.at[:, new].set(after.value),
        node_values=tree.node_values.at[:, new].set(after.value),
        children_prior_logits=tree.children_prior_logits.at[:, new].set(after.logits),
        embeddings=jax.tree.map(lambda leaf, value: leaf.at[:, new].set(value), tree.embeddings, after.latent),
        parents=tree.parents.at[:, new].set(parent),
        action_from_parent=tree.action_from_parent.at[:, new].set(action),
        children_index=tree.children_index.at[edge].set(new),
        children_rewards=tree.children_rewards.at[edge].set(after.reward),
        children_discounts=tree.children_discounts.at[edge].set(after.discount),
    )


def _back_up(tree: Tree, new: Array) -> Tree:
    """Returns the trees with the values of the states `new` in the means of all states above."""
    num_rows, size = tree.node_visits.shape
    rows = jnp.arange(num_rows)

    def climb(carry: Any) -> Any:
        state, value, visits, values, child_visits, child_values = carry
        # Rows whose path has ended write outside of the trees, which leaves them as they are.
        parent = jnp.where(state > 0, _at(tree.parents, state), size)
        action = _at(tree.action_from_parent, state)
        value = _at(tree.children_rewards, parent, action) + _at(tree.children_discounts, parent, action) * value
        count = _at(visits, parent)
        mean = (_at(values, parent) * count + value) / (count + 1.0)
        edge = (rows, parent, action)
        child_values = child_values.at[edge].set(_at(values, state), mode="drop")
        child_visits = child_visits.at[edge].add(1, mode="drop")
        values = values.at[rows, parent].set(mean, mode="drop")
        visits = visits.at[rows, parent].add(1, mode="drop")
        return jnp.where(state > 0, parent, 0), value, visits, values, child_visits, child_values

    carry = (
        jnp.full(num_rows, new),
        tree.node_values[:, new],
        tree.node_visits,
        tree.node_values,
        tree.children_visits,
        tree.children_values,
    )
    *_, visits, values, child_visits, child_values = jax.lax.while_loop(
        lambda carry: (carry[0] > 0).any(), climb, carry
    )
    return tree.replace(
        node_visits=visits, node_values=values, children_visits=child_visits, children_values=child_values
    )
