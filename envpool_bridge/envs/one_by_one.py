"""Base of the sources whose environments are made one by one, which wrappers can therefore enter."""

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Self

from envpool_bridge.envs.protocol import EnvRows
from envpool_bridge.errors import UserError
from envpool_bridge.spec.specs import EnvSpec


class OneByOneSource:
    """Base of frozen dataclasses with the fields below: rows of `make_env()`.

    Not a dataclass itself, so that each source has its own order of fields.

    Attributes:
        make_env: makes one environment.
        env_id: name for messages; "" takes the environment's own.
        action_repeat: steps of the environment, or frames of its emulator, per env step.
        stagger: longest first episode, in env steps; 0 leaves first episodes whole.
        evaluation_env: makes one environment for evaluation, where training changes its episodes or rewards.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # sources are dataclasses, which `replace` needs

    make_env: Callable[[], Any]
    env_id: str
    action_repeat: int
    stagger: int
    evaluation_env: Callable[[], Any] | None

    def spec(self) -> EnvSpec:
        """Returns the spec of a row; makes one environment and closes it."""
        with creation_errors(self.env_id):
            env = self.make_env()
        try:
            return self._spec(env)
        finally:
            env.close()

    def make_rows(self, row_ids: Sequence[int], run_seed: int | None, keep_infos: bool) -> EnvRows:
        """Makes the rows of these ids."""
        raise NotImplementedError

    def for_evaluation(self) -> Self:
        """Returns rows of whole episodes with the environments' own rewards."""
        return dataclasses.replace(self, make_env=self.evaluation_env or self.make_env, evaluation_env=None, stagger=0)

    def wrapped(self, wrapper: Callable[..., Any], *arguments: Any) -> Self:
        """Returns rows whose environments are `wrapper(env, *arguments)`, in evaluation too."""
        make_env = partial(_make_wrapped, self.make_env, wrapper, arguments)
        evaluation_env = self.evaluation_env and partial(_make_wrapped, self.evaluation_env, wrapper, arguments)
        return dataclasses.replace(self, make_env=make_env, evaluation_env=evaluation_env)

    def _spec(self, env: Any) -> EnvSpec:
        raise NotImplementedError


@contextlib.contextmanager
def creation_errors(env_id: str) -> Iterator[None]:
    """Makes any exception of the block, which makes an environment to see its spaces, a UserError with its class and place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        place = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename[0] != "<"][-1]
        problem = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        made = env_id or "the environment"
        raise UserError(f"{made} cannot be made: {problem} (raised at {place.filename}:{place.lineno})") from error


def _make_wrapped(
    make_env: Callable[..., Any], wrapper: Callable[..., Any], arguments: tuple[Any, ...], **kwargs: Any
) -> Any:
    return wrapper(make_env(**kwargs), *arguments)
