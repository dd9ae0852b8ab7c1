"""JAX environments in the CPU pool and in the serial plan, stepped by the functions of `autoreset`."""

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envpool_bridge.envs.io import validation
from envpool_bridge.envs.io.output_rules import OutputRules, raise_bad_output
from envpool_bridge.envs.protocol import EpisodeReset, FirstRows, GymnasiumReset, ResetRequest, StepRows
from envpool_bridge.envs.seeding import NamedSeeds
from envpool_bridge.errors import UserError, WorkerError
from envpool_bridge.spec.specs import DiscreteSpec, EnvSpec
from envpool_bridge.spec.tree import Tree, items, lookup, shown_path, take, write
from jaxsrl.envs.autoreset import RowsState, env_run_key, fold_row_keys, reset_keyed_rows, step_keyed_rows
from jaxsrl.envs.protocol import Array, JaxEnv, validate_env
from jaxsrl.machine.compiler_options import compiler_options

# Compiled once per environment and number of rows, for all parts of a process.
_reset = jax.jit(reset_keyed_rows, static_argnums=0, compiler_options=compiler_options("cpu"))
_step = jax.jit(step_keyed_rows, static_argnums=0, compiler_options=compiler_options("cpu"))


@dataclasses.dataclass(frozen=True)
class JaxSource:
    """Source of rows of the JAX environment `make_jax_env()`. Same run seed and actions give the results of `step_rows`.

    Worker processes import jax (about 200 MB and a second each), so few workers with many rows are best. Rows run on the CPU
    only: workers start with JAX_PLATFORMS=cpu, and in other processes the rows are placed on the CPU device.

    Attributes:
        make_jax_env: makes the environment; picklable.
        strict: whether output must be as declared; otherwise it is repaired where that is possible, and counted.
    """

    make_jax_env: Callable[[], JaxEnv]
    strict: bool = True

    def spec(self) -> EnvSpec:
        """Returns the spec of a row. Raises BadEnvOutputError if the environment does not return what it declares."""
        return self._spec

    @cached_property
    def _spec(self) -> EnvSpec:
        return validate_env(self.make_jax_env())  # traces the environment

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> "JaxRows":
        """Makes rows of these ids; JAX environments have no infos."""
        del keep_infos
        return JaxRows(self.make_jax_env(), row_ids, run_seed, self.strict)


class JaxRows:
    """Keeps the protocol `EnvRows`.

    Attributes:
        read_stage: Function that reads the stage, as in StagedRows; levels alone.
    """

    def __init__(self, env: JaxEnv, row_ids: Sequence[int], run_seed: int | None, strict: bool = True) -> None:
        self.num_rows = len(row_ids)
        self.read_stage: Callable[[int], int | None] = lambda row: None
        self.infos: list[dict[str, Any]] = []
        self._env = env
        self._spec = env.spec()
        self._row_ids = np.asarray(row_ids, np.uint32)
        self._values = validation.ValueCheck(self._spec, OutputRules(self._spec.env_id, row_ids, strict))
        self._device = _cpu_device()
        self._num_steps = 0
        self._run_seed = run_seed
        self._row_keys: Array | None = None
        if run_seed is not None:
            with jax.default_device(self._device):
                self._row_keys = self._placed(fold_row_keys(env_run_key(run_seed), jnp.asarray(self._row_ids)))
        self._state: RowsState | None = None

    def reset(self, request: ResetRequest, out: FirstRows | StepRows) -> None:
        """Starts or replays episodes in all rows; see the protocol.

        Raises:
            UserError: reset options, which JAX environments do not have.
        """
        if isinstance(request, EpisodeReset):
            if self._run_seed is None:
                raise ValueError("an EpisodeReset needs rows that were made with a run_seed")
            levels = np.array(request.stages, np.int32) if request.stages else self._levels(request.episodes)
            state = self._replay(self._start(np.asarray(request.episodes, np.uint32), levels), request)
        else:
            state = self._start(self._seeded_episodes(request))
        self._state = state
        write(out.observation, jax.tree.map(_as_numpy, state.observation))
        self._verify(take(out.observation, None), None)
        if isinstance(out, StepRows):
            out.mark_reset()
        out.is_first[...] = state.is_first

    def step(self, action: np.ndarray, out: StepRows) -> None:
        """Steps every row with one compiled call; see the protocol.

        Raises:
            WorkerError: If the action is not finite, or the environment raised.
        """
        self._validate_finite(action)
        self._num_steps += 1
        try:
            self._state, step = _step(self._env, self._keys(), self._rows_state(), action, self._levels())
        except Exception as error:
            raise self._failure("step", error) from error
        for field, values in zip(step._fields, step, strict=True):
            write(getattr(out, field), jax.tree.map(_as_numpy, values))

    def verify(self, observation: Tree, reward: np.ndarray) -> None:
        """Raises for invalid values of the last steps; see the protocol."""
        self._verify(observation, reward)

    def close(self) -> None:
        """Drops the state; idempotent."""
        self._state = None

    def _levels(self, episodes: Sequence[int] | None = None) -> np.ndarray | None:
        """Returns the levels of rows that are reset now, [R] int32; None without levels. Named seeds are levels.

        Args:
            episodes: number of each row's episode; None for the next ones.
        """
        if isinstance(self._run_seed, NamedSeeds):
            starting = (np.asarray(self._rows_state().episode) + 1).tolist() if episodes is None else episodes
            pairs = zip(self._row_ids.tolist(), starting, strict=True)
            return np.array([self._run_seed.seed(*pair) for pair in pairs], np.int32)
        levels = [self.read_stage(row) for row in range(self.num_rows)] if self._spec.levels else [None]
        return None if levels[0] is None else np.array(levels, np.int32)

    def _start(self, episodes: np.ndarray, levels: np.ndarray | None = None) -> RowsState:
        try:
            return _reset(self._env, self._keys(), self._row_ids, episodes, levels)
        except Exception as error:
            raise self._failure("reset", error) from error

    def _replay(self, state: RowsState, request: EpisodeReset) -> RowsState:
        """Returns the state after each row's own actions, by the same function as `step`: bit-for-bit identical."""
        actions: Sequence[Any] = request.actions
        lengths = np.array([0 if row is None else len(row) for row in actions])
        spec = self._spec.action
        given = np.zeros((lengths.max(initial=0), self.num_rows, *spec.shape), spec.dtype)
        for row, replayed in enumerate(actions):
            if replayed is not None:
                given[: len(replayed), row] = replayed
        for k, action in enumerate(given):
            request.on_step()
            stepped, _ = _step(self._env, self._keys(), state, action)
            state = _select(k < lengths, stepped, state)
        return state

    def _seeded_episodes(self, request: GymnasiumReset) -> np.ndarray:
        """Sets the rows' keys from the seeds; returns the episode each row starts: the next one without a seed."""
        if request.options:
            raise UserError(f"{self._spec.env_id}: JAX environments take no reset options, got {request.options}")
        seeds = request.seeds
        episodes = np.zeros(self.num_rows, np.uint32)
        if self._row_keys is None:
            seeds = tuple(secrets.randbits(31) if seed is None else seed for seed in seeds)
        elif self._state is not None:
            episodes = np.asarray(self._state.episode) + np.uint32(1)
        with jax.default_device(self._device):
            given = jnp.stack([jax.random.key(0 if seed is None else seed) for seed in seeds])
        seeded = np.array([seed is not None for seed in seeds])
        self._row_keys = self._placed(given if self._row_keys is None else jnp.where(seeded, given, self._row_keys))
        return np.where(seeded, np.uint32(0), episodes)

    def _verify(self, observation: Tree, reward: np.ndarray | None) -> None:
        self._values.verify(observation, reward, self._num_steps)
        for path, leaf in items(self._spec.observation):
            if isinstance(leaf, DiscreteSpec):
                self._verify_discrete(shown_path("observation", path), leaf, lookup(observation, path))

    def _verify_discrete(self, name: str, spec: DiscreteSpec, observation: np.ndarray) -> None:
        bad = np.argwhere((observation < 0) | (observation >= spec.num_values))
        if len(bad):
            index, row = (int(number) for number in bad[0])
            step = self._num_steps - len(observation) + 1 + index
            problem = f"expected 0 <= value < {spec.num_values}, got {observation[index, row]}"
            raise_bad_output(self._spec.env_id, int(self._row_ids[row]), step, name, problem)

    def _validate_finite(self, action: np.ndarray) -> None:
        if isinstance(self._spec.action, DiscreteSpec) or np.isfinite(action).all():
            return
        row = int(np.argwhere(~np.isfinite(action))[0][0])
        raise WorkerError(
            f"{self._spec.env_id}, row {self._row_ids[row]}, step {self._num_steps + 1}: the policy's action is not finite: "
            f"{action[row]}; the parameters have probably diverged (lower the learning rate)"
        )

    def _placed(self, keys: Array) -> Array:
        # Committed to the device, so that computations with them run there.
        return jax.device_put(keys, self._device)

    def _keys(self) -> Array:
        if self._row_keys is None:
            raise RuntimeError("the first reset of rows without a run_seed must be a GymnasiumReset")
        return self._row_keys

    def _rows_state(self) -> RowsState:
        if self._state is None:
            raise RuntimeError("call reset before step, and nothing after close")
        return self._state

    def _failure(self, what: str, error: Exception) -> WorkerError:
        rows = f"rows {self._row_ids[0]} to {self._row_ids[-1]}"
        return WorkerError(f"{self._spec.env_id}, {rows}, {what} {self._num_steps}: {type(error).__name__}: {error}")


def _as_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


@jax.jit
def _select(mask: Array, one: RowsState, other: RowsState) -> RowsState:
    return jax.tree.map(partial(jax.vmap(jnp.where), mask), one, other)


def _cpu_device() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise UserError(
            f"rows of a JAX environment are stepped on the CPU, which jax is configured without: set JAX_PLATFORMS to "
            f"'cuda,cpu' instead of {jax.config.jax_platforms!r}"  # pyright: ignore[reportAttributeAccessIssue]
        ) from error
