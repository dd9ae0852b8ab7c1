"""Export of a trained policy to a directory that acts without jaxsrl, compared with the original before it is finished."""

import importlib.util
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import numpy as np

from agents.api import AnyAgent, Mode, Params
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec, spec_to_dict
from jaxsrl.evaluation.export.act_function import ActFunction, make_act_function
from jaxsrl.evaluation.export.numpy_source import NumpySource
from jaxsrl.evaluation.export.validate_export import load_policy, validate_export

Target = Literal["numpy", "jax"]
PLATFORMS = ("cpu", "cuda", "tpu")
_RUNTIME = Path(__file__).with_name("runtime")
_SOURCES: dict[Target, tuple[str, ...]] = {
    "numpy": ("base_policy.py", "numpy_operations.py", "numpy_policy.py"),
    "jax": ("base_policy.py", "jax_policy.py"),
}


def export_policy(
    agent: AnyAgent,
    params: Params,
    spec: EnvSpec,
    out: Path,
    *,
    to: Target,
    origin: dict[str, Any] | None = None,
    platforms: Sequence[str] = PLATFORMS,
) -> Path:
    """Writes policy.py with its data into a new directory, which is complete or does not exist.

    Args:
        agent: agent whose `act` is exported.
        params: Parameters of the agent.
        spec: Specification of the environment.
        out: the directory; it must not exist, or be empty.
        to: "numpy" writes Python source that computes greedy actions; "jax" writes programs serialized by jax.export, of greedy
            and of sampled actions.
        origin: JSON data about the policy's origin, for policy.json.
        platforms: Platforms for "jax": names of the platforms that the programs can run on.

    Returns:
        The directory.

    Raises:
        UserError: If the directory has contents, numpy does not support part of the policy, jax lacks a package, or the results
            differ from those of the agent.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty directory: choose another --out")
    params = jax.tree.map(np.asarray, params)
    greedy = make_act_function(agent, spec, Mode.GREEDY)
    functions, programs, network = {"greedy": greedy}, {}, ""
    if to == "numpy":
        network, arrays = _numpy_network(greedy, params)
    else:
        functions["sampled"] = make_act_function(agent, spec, Mode.SAMPLE)
        programs = {name: _serialize(function, params, platforms) for name, function in functions.items()}
        arrays = {f"params/{index}": leaf for index, leaf in enumerate(jax.tree.leaves(params))}
    arrays |= {f"state/{index}": leaf for index, leaf in enumerate(greedy.initial_state)}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
        directory = Path(name) / out.name
        directory.mkdir()
        for mode, program in programs.items():
            (directory / f"{mode}.bin").write_bytes(program)
        np.savez(directory / "policy.npz", **arrays)  # pyright: ignore[reportArgumentType]
        description = _describe(greedy, spec, agent, origin or {})
        (directory / "policy.json").write_text(json.dumps(description, indent=1) + "\n")
        (directory / "policy.py").write_text(_join_sources(to, network))
        for mode, function in functions.items():
            arguments = {"sample": mode == "sampled"} if to == "jax" else {}
            validate_export(load_policy(directory, **arguments), function, params, spec, exact=to == "jax")
        if out.exists():
            out.rmdir()
        shutil.move(directory, out)
    return out


def _numpy_network(function: ActFunction, params: Params) -> tuple[str, dict[str, np.ndarray]]:
    """Returns the source of the network and the arrays that it reads, by name."""
    by_path, _ = jax.tree_util.tree_flatten_with_path(params)
    names = [f"params/{jax.tree_util.keystr(path, simple=True, separator='/')}" for path, _ in by_path]
    closed = jax.jit(function.call).trace(params, np.uint32(0), *function.inputs).jaxpr
    inputs = [f"input_{index}" for index in range(len(function.inputs))]
    source = NumpySource(closed, [*(f'p["{name}"]' for name in names), "np.uint32(0)", *inputs])
    arrays = dict(zip(names, (leaf for _, leaf in by_path), strict=True)) | source.constants
    return source.text, {name: arrays[name] for name in sorted(source.names)}


def _serialize(function: ActFunction, params: Params, platforms: Sequence[str]) -> bytes:
    if importlib.util.find_spec("flatbuffers") is None:
        raise UserError("--to jax needs the package flatbuffers: pip install flatbuffers, or use --to numpy")

    leaves, tree = jax.tree.flatten(params)

    def act(leaves: list[jax.Array], seed: jax.Array, *inputs: jax.Array) -> list[jax.Array]:
        return function.call(tree.unflatten(leaves), seed, *inputs)

    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    seed = jax.ShapeDtypeStruct((), np.uint32)
    try:
        exported = jax.export.export(jax.jit(act), platforms=tuple(platforms))(shapes, seed, *function.inputs)
    except (ValueError, NotImplementedError) as error:
        raise UserError(f"jax cannot export this policy for {', '.join(platforms)}: {error}") from error
    return bytes(exported.serialize())


def _describe(function: ActFunction, spec: EnvSpec, agent: AnyAgent, origin: dict[str, Any]) -> dict[str, Any]:
    trees = spec_to_dict(EnvSpec(spec.env_id, function.observation, spec.action))
    return {
        "env_id": spec.env_id,
        "agent": agent.name,
        **origin,
        "rows_per_env": spec.rows_per_env,
        "state_leaves": len(function.initial_state),
        "observation": trees["observation"],
        "action": trees["action"],
    }


def _join_sources(to: Target, network: str) -> str:
    """Returns one file of the runtime's sources and the network."""
    texts = [(_RUNTIME / name).read_text() for name in _SOURCES[to]]
    texts = [re.sub(r"^from jaxsrl\..*\n", "", text, flags=re.M) for text in texts]
    first, *others = texts
    others = [re.sub(r'^""".*?"""\n\n', "", text, count=1, flags=re.S) for text in others]
    if network:
        others += [
            f"from functools import partial\n\n\n{network}",
            "class Policy(NumpyPolicy):\n    network = staticmethod(network)\n",
        ]
    return "\n\n".join([first, *others])
