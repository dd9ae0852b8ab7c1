"""Tic-tac-toe as a model of a search, and its exact values."""

import functools

import jax.numpy as jnp
import numpy as np

from agents.search.model import ILLEGAL, ModelStep, Root

LINES = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])


def logits_of(board):
    return jnp.where(board == 0, 0.0, ILLEGAL).astype(jnp.float32)


def make_root(boards):
    """Returns the root of [N, 9] boards, in which 1 is the mover's stone and -1 the other's."""
    boards = jnp.asarray(boards, jnp.int32)
    return Root(logits_of(boards), jnp.zeros(len(boards)), boards)


def step(params, board, action, key):
    rows = jnp.arange(len(action))
    placed = board.at[rows, action].set(1)
    wins = (placed[:, LINES] == 1).all(-1).any(-1)
    ended = wins | (placed != 0).all(-1)
    after = -placed
    discount = jnp.where(ended, 0.0, -1.0)
    return ModelStep(wins.astype(jnp.float32), discount, logits_of(after), jnp.zeros(len(action)), after)


@functools.cache
def action_values(board):
    """Returns the exact value of each legal action of a board, a tuple of nine numbers, by action."""
    values = {}
    for action in (place for place in range(9) if not board[place]):
        placed = (*board[:action], 1, *board[action + 1 :])
        if any(all(placed[place] == 1 for place in line) for line in LINES):
            values[action] = 1
        elif all(placed):
            values[action] = 0
        else:
            values[action] = -max(action_values(tuple(-stone for stone in placed)).values())
    return values


@functools.cache
def all_boards():
    """Returns all boards from which a move is possible, in the mover's view: [4520, 9]."""
    seen, ahead = set(), [(0,) * 9]
    while ahead:
        board = ahead.pop()
        if board in seen:
            continue
        seen.add(board)
        for action in action_values(board):
            placed = (*board[:action], 1, *board[action + 1 :])
            is_won = any(all(placed[place] == 1 for place in line) for line in LINES)
            if not is_won and not all(placed):
                ahead.append(tuple(-stone for stone in placed))
    return np.array(sorted(seen))
