"""ViZDoom scenarios. Protocol: Petrenko et al. 2020 (Sample Factory, arXiv:2006.11751): 160x120 RGB as 128x72, frame skip 4."""

import dataclasses
import difflib
import os
import shlex
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec as Registration

from envpool_bridge.envs.gymnasium_env import GymnasiumSource
from envpool_bridge.envs.suites.optional_imports import validate_installed
from envpool_bridge.envs.suites.options import options_of, validate_at_least
from envpool_bridge.envs.suites.registry import registered_with_prefix
from envpool_bridge.errors import UserError

# Files of the commercial games, which the package lacks, by the scenario that plays them.
_COMMERCIAL_GAMES = {"doom.cfg": "doom.wad", "doom2.cfg": "doom2.wad"}


@dataclasses.dataclass(frozen=True)
class VizdoomOptions:
    """Options of a scenario.

    Attributes:
        frame_skip: tics (1/35 s) per env step.
        screen_size: height and width of the screen that agents see; ViZDoom renders 120 x 160, which is reduced.
        grayscale: one channel, [height, width]; otherwise three, [height, width, 3].
        frame_stack: number of newest screens (and game variables) that agents see; 1 does not stack.
        game_variables: whether agents see the scenario's variables (health, ammunition, ...), if it has any.
        max_buttons_pressed: largest number of buttons pressed at once; an action is one set of buttons. 0: any set (a
            MultiDiscrete). None: the default of the id, which is 1 for the scenarios.
    """

    frame_skip: int = 4
    screen_size: tuple[int, int] = (72, 128)
    grayscale: bool = False
    frame_stack: int = 1
    game_variables: bool = True
    max_buttons_pressed: int | None = None

    def __post_init__(self) -> None:
        validate_at_least(1, frame_skip=self.frame_skip, frame_stack=self.frame_stack)
        validate_at_least(8, screen_height=self.screen_size[0], screen_width=self.screen_size[1])
        validate_at_least(0, max_buttons_pressed=self.max_buttons_pressed or 0)
        if self.frame_stack > 1 and not self.grayscale:
            raise UserError(f"frame_stack {self.frame_stack} stacks grey screens: set grayscale true, or frame_stack 1")


def vizdoom_source(env_id: str, kwargs: dict[str, Any], strict: bool) -> GymnasiumSource:
    """Returns the source of a scenario.

    Raises:
        UserError: If the scenario or an option is unknown, or a package or the game's own files are missing.
    """
    registered = _registration(env_id)
    options = options_of(VizdoomOptions, "vizdoom", env_id, kwargs)
    make_env = partial(_make, registered, options)
    return GymnasiumSource(make_env, env_id, options.frame_skip, strict, frame_stack=options.frame_stack)


def _registration(env_id: str) -> Registration:
    validate_installed("vizdoom", "vizdoom")
    validate_installed("cv2", "vizdoom")
    import vizdoom
    import vizdoom.gymnasium_wrapper  # registers the ids

    registered = registered_with_prefix(env_id, "vizdoom", ("Vizdoom",))
    commercial = _COMMERCIAL_GAMES.get(registered.kwargs["scenario_config_file"])
    if commercial is not None and not (Path(vizdoom.scenarios_path) / commercial).is_file():
        free = [name for name in gymnasium.registry if name.startswith("VizdoomFreedoom")]
        wanted = "VizdoomFreedoom" + env_id.removeprefix("VizdoomDoom")
        (nearest,) = difflib.get_close_matches(wanted, free, n=1, cutoff=0.0)
        raise UserError(
            f"{env_id} plays a commercial game: copy its {commercial} to {vizdoom.scenarios_path}, or play Freedoom's levels "
            f"(ids VizdoomFreedoom1* and VizdoomFreedoom2*, such as {nearest})"
        )
    return registered


def _make(registered: Registration, options: VizdoomOptions, render_mode: str | None = None) -> gymnasium.Env:
    """Makes the scenario, one screen in each observation: sources stack them."""
    given: dict[str, Any] = {"screen_format": "GRAY8" if options.grayscale else "RGB24"}
    if options.max_buttons_pressed is not None:
        given["max_buttons_pressed"] = options.max_buttons_pressed
    env = gymnasium.make(
        registered,
        disable_env_checker=True,
        frame_skip=options.frame_skip,
        screen_resolution="RES_160X120",
        use_multi_binary_action_space=False,
        render_mode=render_mode,
        **given,
    )
    return VizdoomPreprocessing(env, options)


class VizdoomPreprocessing(gymnasium.Wrapper):
    """Scenario with smaller screens and correct ends of episodes.

    - Each pixel of the smaller screen is the mean over its area; other buffers (audio, automap, ...) are dropped.
    - An episode that runs out of time is truncated, and not terminated as well. Doom renders nothing after the end of
    an episode, so the last observation repeats the previous one. The value of a truncated episode is then that of a
    real state.
    - The game runs in its own directory, where it writes its settings, and ends when this process is killed.

    Args:
        env: made by `gymnasium.make` from a Vizdoom* id.
        options: Options of the scenario.
    """

    def __init__(self, env: gymnasium.Env, options: VizdoomOptions) -> None:
        super().__init__(env)
        self._options = options
        self._last: dict[str, np.ndarray] = {}
        self._drawn: Any = None
        inner = env.observation_space
        assert isinstance(inner, spaces.Dict)
        shape = options.screen_size if options.grayscale else (*options.screen_size, 3)
        seen: dict[str, spaces.Space] = {"screen": spaces.Box(0, 255, shape, np.uint8)}
        self._has_variables = options.game_variables and "gamevariables" in inner.spaces
        if self._has_variables:
            variables = inner["gamevariables"].shape
            assert variables is not None
            seen["gamevariables"] = spaces.Box(-np.inf, np.inf, variables, np.float32)
        self.observation_space = spaces.Dict(seen)
        self.action_space = _unbounded(env.action_space)
        self._game: Any = env.unwrapped.game  # pyright: ignore[reportAttributeAccessIssue]
        self._directory = tempfile.TemporaryDirectory(prefix="jaxsrl_vizdoom_")
        self._game.set_vizdoom_path(str(_launcher(Path(self._directory.name))))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Returns the first observation of an episode; with a seed, the same one each time."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._last = self._seen(observation)
        return self._last, info

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], Any, bool, bool, dict[str, Any]]:
        """Steps the game by the tics of the frame skip."""
        observation, reward, ended, timed_out, info = self.env.step(action)
        if not ended:
            self._last = self._seen(observation)
        truncated = bool(timed_out and not self._game.is_player_dead())
        return self._last, reward, bool(ended and not truncated), truncated, info

    def render(self) -> Any:
        """Returns the game's screen, [120, 160, 3] uint8; after the end of an episode, the last one."""
        if not self._game.is_episode_finished():
            self._drawn = self.env.render()
        return self._drawn

    def close(self) -> None:
        self.env.close()
        self._directory.cleanup()

    def _seen(self, observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        import cv2

        height, width = self._options.screen_size
        seen = {"screen": cv2.resize(observation["screen"], (width, height), interpolation=cv2.INTER_AREA)}
        if self._has_variables:
            seen["gamevariables"] = observation["gamevariables"]
        return seen


def _unbounded(space: spaces.Space) -> spaces.Space:
    """Removes the bounds of a space: ViZDoom declares the largest float for mouse movements."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _unbounded(child) for name, child in space.items()})
    if isinstance(space, spaces.Box):
        return spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return space


def _launcher(directory: Path) -> Path:
    """Writes a program that starts the game in `directory`, and asks the kernel to end it with the thread that started it.

    ViZDoom's own library starts the game from this process, and cannot end it after this process was killed.
    """
    import vizdoom

    game = shlex.quote(str(Path(vizdoom.__file__).parent / "vizdoom"))
    path = directory / "start_vizdoom"
    path.write_text(
        "#!/bin/sh\n"
        f"cd {shlex.quote(str(directory))} || exit 1\n"
        f'if command -v setpriv >/dev/null; then exec setpriv --pdeathsig KILL {game} "$@"; fi\n'
        f'exec {game} "$@"\n'
    )
    os.chmod(path, 0o700)
    return path
