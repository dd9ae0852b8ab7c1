"""Which leaves of an observation a network sees, and how each is encoded."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.api import Array, Observation
from agents.networks.config import IMAGE_TORSOS
from agents.networks.torsos.entity_sets import is_entity_set, require_sets, with_masks
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import ArraySpec, DiscreteSpec, EnvSpec, LeafSpec, MultiDiscreteSpec, is_one_leaf
from envpool_bridge.spec.tree import Path, items, lookup, path_name, shown_path

LARGEST_SMALL_IMAGE = 35  # pixels a side; nature_cnn needs more


@dataclasses.dataclass(frozen=True)
class ObservationInputs:
    """The leaves that one network sees.

    Attributes:
        leaves: (keys, spec) of each, in order.
        torso: of the network.
        named: whether leaves go by their names; False for an observation that is one array, which has none.
    """

    leaves: tuple[tuple[Path, LeafSpec], ...]
    torso: str
    named: bool

    @property
    def images(self) -> tuple[str, ...]:
        """Returns names of the leaves that pass through an image torso; "" for an observation that is one image."""
        return tuple(path_name(path) for path, leaf in self.leaves if self._is_image(leaf))

    def zeros(self) -> Any:
        """Returns one row of inputs, encoded, [1, ...] each: what parameters are initialised with."""
        rows = [jnp.zeros((1, *leaf.shape), leaf.dtype) for _, leaf in self.leaves]
        return self._named([self._encode(leaf, row) for (_, leaf), row in zip(self.leaves, rows, strict=True)])

    def encode(self, observation: Observation) -> Any:
        """What the torso sees of [B, ...] observations, or of [T, B, ...] ones.

        Returns:
            float32 features [..., D] of a leaf, images as they are, an EntitySet of a set where the torso is for those; of
            several leaves, a dict by name. [T, B] becomes [B * T], which `restore` takes back: convolutions want one batch
            axis, and the gradient of a dense layer over two is copied and multiplied at half the speed on processors
            (docs/benchmarks).
        """
        values = [lookup(observation, path) for path, _ in self.leaves]
        if self._flattens(observation):
            # Rows first: merging axes whose *major* one is sharded keeps the shards, the other order would gather.
            values = [jnp.swapaxes(x, 0, 1).reshape((-1, *x.shape[2:])) for x in values]
        return self._named([self._encode(leaf, x) for (_, leaf), x in zip(self.leaves, values, strict=True)])

    def restore(self, observation: Observation, outputs: Any) -> Any:
        """Outputs [..., D] with the leading axes of the observations that they belong to."""
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
        if self._is_image(leaf):
            return x
        if self.torso == "entities" and is_entity_set(leaf):
            return x.astype(jnp.float32)
        return x.reshape((*lead, -1)).astype(jnp.float32)

    def _is_image(self, leaf: LeafSpec) -> bool:
        return self.torso in IMAGE_TORSOS and is_image(leaf)

    def _named(self, encoded: list[Array]) -> Any:
        by_path: Any = {path: x for (path, _), x in zip(self.leaves, encoded, strict=True)}
        if self.torso == "entities":
            by_path = with_masks(self.leaves, by_path)
        return {path_name(path): x for path, x in by_path.items()} if self.named else by_path[()]


def is_image(leaf: LeafSpec) -> bool:
    """Returns whether an image torso takes this leaf: an array of rank 3."""
    return isinstance(leaf, ArraySpec) and len(leaf.shape) == 3


def inputs_of(spec: EnvSpec, torso: str, without: Path = ()) -> ObservationInputs:
    """Returns all leaves of the observation but the action mask and what is at the keys `without`, if any.

    Raises:
        UserError: nothing is left to see, or nothing is at `without`.
    """
    leaves = [(path, leaf) for path, leaf in items(spec.observation) if path != spec.action_mask or not path]
    left = tuple((path, leaf) for path, leaf in leaves if not without or path[: len(without)] != without)
    if without and len(left) == len(leaves):
        names = ", ".join(shown_path("observation", path) for path, _ in leaves)
        raise UserError(
            f"{spec.env_id}: {shown_path('observation', without)} is no part of the observation: got {names}"
        )
    if not left:
        hidden = ", ".join(shown_path("observation", path) for path in (spec.action_mask, without) if path)
        raise UserError(f"{spec.env_id}: a network needs something to see: the observation has nothing beside {hidden}")
    return ObservationInputs(left, torso, not is_one_leaf(spec.observation))


def require_fit(spec: EnvSpec, inputs: ObservationInputs) -> None:
    """Refuses a torso that fits no leaf, or not every image.

    Raises:
        UserError: names the leaf.
    """
    if inputs.torso == "entities":
        require_sets(spec.env_id, inputs.leaves)
    if inputs.torso not in IMAGE_TORSOS:
        return
    if not inputs.images:
        listed = ", ".join(f"{shown_path('observation', path)} of shape {leaf.shape}" for path, leaf in inputs.leaves)
        raise UserError(
            f"{spec.env_id}: the {inputs.torso} torso needs images of rank 3, got {listed}; use torso 'mlp'"
        )
    for path, leaf in inputs.leaves:
        if inputs.torso == "nature_cnn" and is_image(leaf) and sorted(leaf.shape)[1] <= LARGEST_SMALL_IMAGE:
            raise UserError(
                f"{spec.env_id}: the nature_cnn torso needs images of at least 36 x 36 pixels, got "
                f"{shown_path('observation', path)} of shape {leaf.shape}; use torso 'impala_resnet'"
            )


def _one_hots(x: Array, num_values: Sequence[int]) -> Array:
    """[..., elements] integers as the one-hot vectors of each element in turn, [..., sum of num_values] float32."""
    element = np.repeat(np.arange(len(num_values)), num_values)
    value = np.concatenate([np.arange(size) for size in num_values])
    return (x[..., element] == value).astype(jnp.float32)
