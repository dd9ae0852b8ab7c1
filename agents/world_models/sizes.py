"""Sizes of a world model by name."""

import dataclasses
from typing import Literal, NamedTuple

from agents.networks.observation_scale import is_image
from agents.ops import validate
from agents.settings import Nested, reject_other
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec
from envpool_bridge.spec.tree import items

SizeName = Literal["1m", "12m", "25m", "50m", "100m", "200m", "400m"]


class Sizes(NamedTuple):
    """Sizes of all layers.

    Attributes:
        deter: D, numbers of the recurrent state.
        hidden: Units of the layers around the recurrent state.
        stoch: S, categorical variables of the sampled state.
        classes: C, values of each variable.
        depth: Channels of convolutions are 2, 3, 4 and 4 times it.
        units: Units of encoder, decoder and heads.
        blocks: G, independent blocks of the recurrent layers; divides D.
    """

    deter: int
    hidden: int
    stoch: int
    classes: int
    depth: int
    units: int
    blocks: int

    @property
    def features(self) -> int:
        """Numbers that heads see: the recurrent state and the sampled one as one-hot vectors."""
        return self.deter + self.stoch * self.classes


_DETER = {"1m": 512, "12m": 2048, "25m": 3072, "50m": 4096, "100m": 6144, "200m": 8192, "400m": 12288}


@dataclasses.dataclass(frozen=True)
class WorldModelConfig(Nested):
    """Sizes of a world model: those of a name, of which single ones may be replaced.

    Attributes:
        size: Name, about the number of parameters, as published.
        deter: D, numbers of the recurrent state; None: by name.
        hidden: Units of the layers around the recurrent state; None: by name.
        classes: C, values of each categorical variable; None: by name.
        depth: Factor of the channels of convolutions; None: by name.
        units: Units of encoder, decoder and heads; None: by name.
        stoch: S, categorical variables.
        blocks: G, blocks of the recurrent layers.
        unroll: Steps of the recurrent model in each iteration of its loops. GPUs compute 4 faster, CPUs 1.
    """

    size: SizeName = "12m"
    deter: int | None = None
    hidden: int | None = None
    classes: int | None = None
    depth: int | None = None
    units: int | None = None
    stoch: int = 32
    blocks: int = 8
    unroll: int = 1

    def __post_init__(self) -> None:
        validate.choices(self)
        validate.positive(self, "deter", "hidden", "classes", "depth", "units")
        validate.at_least_one(self, "stoch", "blocks", "unroll")
        if self.sizes.deter % self.blocks:
            raise UserError(f"blocks must divide deter: got {self.blocks} and {self.sizes.deter}")

    @property
    def sizes(self) -> Sizes:
        """Returns the sizes of all layers."""
        deter = _DETER[self.size]
        units, classes = deter // 8, deter // 128
        return Sizes(
            deter=self.deter or deter,
            hidden=self.hidden or units,
            stoch=self.stoch,
            classes=self.classes or classes,
            depth=self.depth or classes,
            units=self.units or units,
            blocks=self.blocks,
        )

    def sizes_for(self, spec: EnvSpec) -> Sizes:
        """Returns the sizes of all layers; raises UserError if one has no effect on these observations."""
        has_images = any(is_image(leaf) for _, leaf in items(spec.observation))
        if not has_images:
            reject_other("model.depth", self.depth, None, "observations have no images")
        read = (self.deter, self.hidden, self.classes, self.units, self.depth if has_images else 0)
        if None not in read:
            reject_other("model.size", self.size, type(self).size, "all its sizes are given")
        return self.sizes
