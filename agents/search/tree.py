"""Growth of search trees, all rows at once.

A root has the values, visits and rewards of `mctx.search` for a single row with the same key. Where the batched loops of mctx copy
all states of all rows at each level of a path, these update the states on the path. The rules that select actions are mctx's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx

from agents.api import Array, Params
from agents.search.model import Latent, ModelStep, Root, StepFn, legal_actions, step_rows

View = Any
"""`mctx.Tree` with one state of each row, number 0, as the rules of mctx read it. Its fields are hidden from type checkers."""
SelectFn = Callable[[Array, View, int, Array], Array]
"""Maps (key, view of one row, 0, depth) to an action; the root has depth 0."""
_View: Any = mctx.Tree
_NONE = -1


class _Trees(NamedTuple):
    """Trees of N rows with S states; state 0 is the root, and simulation k adds the state k + 1.

    Attributes:
        latent: [N, S, ...] a leaf.
        logits: [N, S, A] of the prior policy.
        child: [N, S, A] int32, state after each action; -1 for an action that was not tried.
        parent: [N, S] int32.
        reward: [N, S] of the action that leads to the state.
        discount: [N, S] of that action.
        first_value: [N, S] estimated when the state was added.
        value: [N, S] mean of that and of all values found below.
        visits: [N, S] int32, number of values in the mean.
    """

    latent: Latent
    logits: Array
    child: Array
    parent: Array
    reward: Array
    discount: Array
    first_value: Array
    value: Array
    visits: Array


class Selection(NamedTuple):
    """Rules that select actions.

    Attributes:
        inside: selects the action of a state.
        at_root: selects the root's action; `inside` if None.
        data: Data of the rows, a tree of [N, ...], which the rules read as `extra_data` of a view.
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
) -> View:
    """Returns views of the roots of N rows after `num_simulations` simulations.

    A simulation selects actions from the root to one that was not tried, or to the largest depth. There a step of the model adds a
    state, whose value is averaged into all states above.

    Args:
        step: Step of the model.
        params: Parameters of the model.
        root: Root of the rows.
        keys: [N] typed keys.
        selection: Selection of actions.
        num_simulations: calls of the model, at least 1.
        max_depth: longest path of actions; 0 for no limit.
    """
    legal = legal_actions(root.logits)

    def view(trees: _Trees, state: Array) -> View:
        return _view(trees, state, legal, selection.data)

    def simulate(number: Array, carry: tuple[Array, _Trees]) -> tuple[Array, _Trees]:
        keys, trees = carry
        keys, path_keys, step_keys = _split(keys, 3)
        parent, action = _descend(trees, _split(path_keys, 1)[0], selection, view, max_depth or num_simulations)
        after = step_rows(step, params, _latent(trees, parent), action, step_keys)
        return keys, _back_up(_add(trees, number + 1, parent, action, after), number + 1)

    first = keys, _plant(root, num_simulations + 1)
    _, trees = jax.lax.fori_loop(0, num_simulations, simulate, first)
    return view(trees, jnp.zeros(keys.shape[0], jnp.int32))


def _split(keys: Array, number: int) -> Array:
    return jax.vmap(partial(jax.random.split, num=number), out_axes=1)(keys)


def _at(leaf: Array, *index: Array) -> Array:
    # By `vmap`: indexing all rows at once would hide from the compiler that a row needs no other, and it would gather sharded rows.
    return jax.vmap(lambda row, *place: row[place])(leaf, *index)


def _put(leaf: Array, value: Array, *index: Array) -> Array:
    """Returns the leaf with a value [N] at an index of each row; a value beyond the ends is dropped."""
    return jax.vmap(lambda row, own, *place: row.at[place].set(own, mode="drop"))(leaf, value, *index)


def _latent(trees: _Trees, state: Array) -> Latent:
    return jax.tree.map(lambda leaf: _at(leaf, state), trees.latent)


def _plant(root: Root, size: int) -> _Trees:
    """Returns trees with room for `size` states, of which the root has one visit."""
    num_rows, num_actions = root.logits.shape
    zeros = jnp.zeros((num_rows, size), jnp.float32)

    def at_root(leaf: Array) -> Array:
        return jnp.zeros((num_rows, size, *leaf.shape[1:]), leaf.dtype).at[:, 0].set(leaf)

    return _Trees(
        latent=jax.tree.map(at_root, root.latent),
        logits=at_root(root.logits),
        child=jnp.full((num_rows, size, num_actions), _NONE, jnp.int32),
        parent=jnp.full((num_rows, size), _NONE, jnp.int32),
        reward=zeros,
        discount=zeros,
        first_value=at_root(root.value.astype(jnp.float32)),
        value=at_root(root.value.astype(jnp.float32)),
        visits=at_root(jnp.ones(num_rows, jnp.int32)),
    )


def _view(trees: _Trees, state: Array, legal: Array, data: Any) -> View:
    """Returns views of one state [N] of each row, whose values of actions are those of the states after them."""
    child = _at(trees.child, state)

    def of_children(leaf: Array) -> Array:
        return jnp.where(child != _NONE, _at(leaf, child), jnp.zeros((), leaf.dtype))[:, None]

    def of_state(leaf: Array) -> Array:
        return _at(leaf, state)[:, None]

    return _View(
        node_visits=of_state(trees.visits),
        raw_values=of_state(trees.first_value),
        node_values=of_state(trees.value),
        parents=of_state(trees.parent),
        action_from_parent=None,
        children_index=child[:, None],
        children_prior_logits=of_state(trees.logits),
        children_values=of_children(trees.value),
        children_visits=of_children(trees.visits),
        children_rewards=of_children(trees.reward),
        children_discounts=of_children(trees.discount),
        embeddings=None,
        root_invalid_actions=jnp.logical_not(legal),
        extra_data=data,
    )


def _descend(
    trees: _Trees, keys: Array, selection: Selection, view: Callable[[_Trees, Array], View], max_depth: int
) -> tuple[Array, Array]:
    """Returns the last state [N] of each row's path, and the action [N] selected there."""

    def choose(rule: SelectFn, keys: Array, state: Array, depth: Array) -> tuple[Array, Array]:
        keys, own = _split(keys, 2)
        return keys, jax.vmap(rule, (0, 0, None, None))(own, view(trees, state), 0, depth)

    def is_inside(depth: Array, state: Array, action: Array) -> Array:
        return (_at(trees.child, state, action) != _NONE) & (depth < max_depth)

    def follow(path: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        depth, keys, state, action = path
        goes_on = is_inside(depth, state, action)
        state = jnp.where(goes_on, _at(trees.child, state, action), state)
        keys, chosen = choose(selection.inside, keys, state, depth)
        return depth + 1, keys, state, jnp.where(goes_on, chosen, action)

    root = jnp.zeros(keys.shape[0], jnp.int32)
    keys, action = choose(selection.at_root or selection.inside, keys, root, jnp.int32(0))
    path = jnp.int32(1), keys, root, action
    _, _, state, action = jax.lax.while_loop(lambda path: is_inside(path[0], path[2], path[3]).any(), follow, path)
    return state, action


def _add(trees: _Trees, new: Array, parent: Array, action: Array, after: ModelStep) -> _Trees:
    """Returns the trees with the state `new` behind an action of `parent` [N]; it takes the place of one at the largest depth."""
    old = _at(trees.child, parent, action)
    visits = 1 + jnp.where(old == _NONE, 0, _at(trees.visits, old))

    def put(leaf: Array, value: Array) -> Array:
        return leaf.at[:, new].set(value)

    return _Trees(
        latent=jax.tree.map(put, trees.latent, after.latent),
        logits=put(trees.logits, after.logits),
        child=_put(trees.child, jnp.full_like(parent, new), parent, action),
        parent=put(trees.parent, parent),
        reward=put(trees.reward, after.reward),
        discount=put(trees.discount, after.discount),
        first_value=put(trees.first_value, after.value),
        value=put(trees.value, after.value),
        visits=put(trees.visits, visits),
    )


def _back_up(trees: _Trees, new: Array) -> _Trees:
    """Returns the trees with the values of the states `new` in the means of all states above."""
    num_rows, size = trees.visits.shape

    def climb(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        state, value, means, visits = carry
        value = _at(trees.reward, state) + _at(trees.discount, state) * value
        # Rows whose path has ended write outside of the trees, which leaves them as they are.
        parent = jnp.where(state > 0, _at(trees.parent, state), size)
        count = _at(visits, parent)
        mean = (_at(means, parent) * count + value) / (count + 1.0)
        means, visits = _put(means, mean, parent), _put(visits, count + 1, parent)
        return jnp.where(state > 0, parent, 0), value, means, visits

    carry = jnp.full(num_rows, new), trees.value[:, new], trees.value, trees.visits
    *_, means, visits = jax.lax.while_loop(lambda carry: (carry[0] > 0).any(), climb, carry)
    return trees._replace(value=means, visits=visits)
