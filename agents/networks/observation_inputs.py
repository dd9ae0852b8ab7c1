"""Input leaves of a network, and their encoding."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, Observation
from agents.networks.config import IMAGE_TORSOS, NetworkConfig, is_own_torso
from agents.networks.observation_scale import image_shape, is_image, scaled
from agents.networks.torsos.circular_conv import is_leaf_called
from agents.networks.torsos.entity_sets import is_entity_set, validate_entity_sets, with_masks
from agents.networks.torsos.own_torso import load_own_torso
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import (
    ArraySpec,
    DiscreteSpec,
    EnvSpec,
    LeafSpec,
    MultiDiscreteSpec,
    is_one_leaf,
)
from envpool_bridge.spec.tree import Path, items, lookup, path_name, shown_path

LARGEST_SMALL_IMAGE = 35  # pixels per side; nature_cnn needs more


@dataclasses.dataclass(frozen=True)
class ObservationInputs:
    """Input leaves of one network.

    Attributes:
        leaves: (keys, spec) of each leaf, in order.
        torso: Torso of the network.
        named: Whether leaves have names; False for an observation of one array.
    """

    leaves: tuple[tuple[Path, LeafSpec], ...]
    torso: str
    named: bool

    @property
    def images(self) -> tuple[tuple[str, ArraySpec], ...]:
        """Names and specs of the leaves that pass through an image torso; the name "" for an observation of one image."""
        images = [(path_name(path), leaf) for path, leaf in self.leaves if self._is_image(leaf)]
        return tuple((name, leaf) for name, leaf in images if isinstance(leaf, ArraySpec))

    def zeros(self) -> Any:
        """Returns one encoded row of zeros, [1, ...] each, to initialize parameters with."""
        rows = [jnp.zeros((1, *leaf.shape), leaf.dtype) for _, leaf in self.leaves]
        return self._named([self._encode(leaf, row) for (_, leaf), row in zip(self.leaves, rows, strict=True)])

    def encode(self, observation: Observation) -> Any:
        """Returns the torso's inputs for observations [B, ...] or [T, B, ...].

        A leaf becomes float32 features [..., D] in the scale of `observation_scale`; a set becomes an EntitySet for a torso of
        entities. Images stay unchanged for an image torso, and every array for an own torso.
        Several leaves become a dict by name. [T, B] becomes [B * T], which `restore` reverts: convolutions need one batch axis,
        and on CPU the gradient of a dense layer over two axes runs at half the speed (docs/benchmarks).
        """
        values = [lookup(observation, path) for path, _ in self.leaves]
        if self._flattens(observation):
            # Rows first: merging axes whose *major* one is sharded keeps the shards, the other order would gather.
            values = [jnp.swapaxes(x, 0, 1).reshape((x.shape[0] * x.shape[1], *x.shape[2:])) for x in values]
        return self._named([self._encode(leaf, x) for (_, leaf), x in zip(self.leaves, values, strict=True)])

    def restore(self, observation: Observation, outputs: Any) -> Any:
        """Returns outputs [..., D] with the leading axes of their observations."""
        if not self._flattens(observation):
            return outputs
        path, _ = self.leaves[0]
        steps, rows = lookup(observation, path).shape[:2]
        return jax.tree.map(lambda y: jnp.swapaxes(y.reshape((rows, steps, y.shape[-1])), 0, 1), outputs)

    def _flattens(self, observation: Observation) -> bool:
        path, leaf = self.leaves[0]
        return lookup(observation, path).ndim == len(leaf.shape) + 2

    def _encode(self, leaf: LeafSpec, x: Array) -> Array:
        if isinstance(leaf, DiscreteSpec):
            return jax.nn.one_hot(x, leaf.num_values)
        lead = x.shape[: x.ndim - len(leaf.shape)]
        if isinstance(leaf, MultiDiscreteSpec):
            return _one_hots(x.reshape((*lead, -1)), leaf.num_values)
        if self._is_image(leaf) or is_own_torso(self.torso):
            return x
        values, size = scaled(leaf, x), math.prod(leaf.shape)
        if self.torso == "entities" and is_entity_set(leaf):
            return values
        return values.reshape((*lead, size)) if size else jnp.zeros((*lead, 1))  # a layer needs an input

    def _is_image(self, leaf: LeafSpec) -> bool:
        return self.torso in IMAGE_TORSOS and is_image(leaf)

    def _named(self, encoded: list[Array]) -> Any:
        by_path: Any = {path: x for (path, _), x in zip(self.leaves, encoded, strict=True)}
        if self.torso == "entities":
            by_path = with_masks(self.leaves, by_path)
        return {path_name(path): x for path, x in by_path.items()} if self.named else by_path[()]


def make_inputs(spec: EnvSpec, torso: str, without: Path = ()) -> ObservationInputs:
    """Returns all leaves of the observation except the action mask and those below the keys `without`.

    Raises:
        UserError: If no leaf remains, there is no leaf at `without`, or several players act in one row.
    """
    if spec.players > 1:
        two = "--env.kwargs.two_agents true, or AlphaZero if both see the whole game"
        raise UserError(
            f"{spec.env_id}: {spec.players} players move in turn in each row, and an agent that takes their rewards for its own "
            f"learns to let any of them win: use {two if spec.players == 2 else 'a game of at most two players'}"
        )
    leaves = [(path, leaf) for path, leaf in items(spec.observation) if path != spec.action_mask or not path]
    inputs = tuple((path, leaf) for path, leaf in leaves if not without or path[: len(without)] != without)
    if without and len(inputs) == len(leaves):
        names = ", ".join(shown_path("observation", path) for path, _ in leaves)
        raise UserError(
            f"{spec.env_id}: {shown_path('observation', without)} is no part of the observation: got {names}"
        )
    if not inputs:
        hidden = ", ".join(shown_path("observation", path) for path in (spec.action_mask, without) if path)
        raise UserError(f"{spec.env_id}: a network needs an input: the observation has only {hidden}")
    return ObservationInputs(inputs, torso, not is_one_leaf(spec.observation))


def actor_config(config: NetworkConfig, inputs: ObservationInputs) -> NetworkConfig:
    """Returns the configuration of an actor, without the circular leaves that only its critic may see.

    The critic's network has all of them, and rejects other names.
    """
    names = [path_name(path) for path, _ in inputs.leaves]
    visible = tuple(rays for rays in config.circular if any(is_leaf_called(rays, name) for name in names))
    return dataclasses.replace(config, circular=visible)


def validate_torso(spec: EnvSpec, inputs: ObservationInputs) -> None:
    """Validates that the torso fits a leaf and every image; an own torso, that it exists.

    Raises:
        UserError: If it does not; the message names the leaf.
    """
    if is_own_torso(inputs.torso):
        load_own_torso(inputs.torso)
    if inputs.torso == "entities":
        validate_entity_sets(spec.env_id, inputs.leaves)
    if inputs.torso not in IMAGE_TORSOS:
        return
    if not inputs.images:
        listed = ", ".join(f"{shown_path('observation', path)} of shape {leaf.shape}" for path, leaf in inputs.leaves)
        raise UserError(
            f"{spec.env_id}: the {inputs.torso} torso needs images of rank 3, or frames of them, got {listed}; use torso 'mlp'"
        )
    for path, leaf in inputs.leaves:
        if inputs.torso != "nature_cnn" or not isinstance(leaf, ArraySpec) or not is_image(leaf):
            continue
        if min(image_shape(leaf)[:2]) <= LARGEST_SMALL_IMAGE:
            raise UserError(
                f"{spec.env_id}: the nature_cnn torso needs images of at least 36 x 36 pixels, got "
                f"{shown_path('observation', path)} of shape {leaf.shape}; use torso 'impala_resnet'"
            )


def _one_hots(x: Array, num_values: Sequence[int]) -> Array:
    """Returns one-hot vectors of integers [..., elements], one element after another: [..., sum of num_values] float32."""
    element = np.repeat(np.arange(len(num_values)), num_values)
    value = np.concatenate([np.arange(size) for size in num_values])
    return (x[..., element] == value).astype(jnp.float32)
