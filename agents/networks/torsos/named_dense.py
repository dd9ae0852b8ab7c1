"""Dense layer over named inputs."""

import flax.linen as nn
import jax.numpy as jnp

from agents.api import Array
from agents.networks.config import DTypeName


class NamedDense(nn.Module):
    """A dense layer over the concatenation of its inputs [..., D_i], with weights stored by the name of the input.

    If an environment renames or reorders its leaves, a leaf never gets the weights of another leaf. The weights of each input are
    orthogonal with gain sqrt(2), so small inputs keep their scale. An input that is constant along a leading axis has size 1
    there and is multiplied once.

    Attributes:
        features: Size of the output.
        dtype: Type of the computation.
    """

    features: int
    dtype: DTypeName = "float32"

    @nn.compact
    def __call__(self, inputs: dict[str, Array]) -> Array:
        init = nn.initializers.orthogonal(2**0.5)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
        names = sorted(inputs)
        kernels = [self.param(f"kernel/{name}", init, (inputs[name].shape[-1], self.features)) for name in names]
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, name in enumerate(names):
            groups.setdefault(inputs[name].shape[:-1], []).append(index)
        outputs = [
            jnp.concatenate([inputs[names[index]] for index in indices], axis=-1).astype(self.dtype)
            @ jnp.concatenate([kernels[index] for index in indices]).astype(self.dtype)
            for indices in groups.values()
        ]
        return sum(outputs[1:], outputs[0]) + bias.astype(self.dtype)
