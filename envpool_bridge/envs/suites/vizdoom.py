"""ViZDoom scenarios. Protocol: Petrenko et al. 2020 (Sample Factory, arXiv:2006.11751): 160x120 RGB as 128x72, frame skip 4."""

import dataclasses
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
from envpool_bridge.envs.suites.optional_imports import require_package
from envpool_bridge.envs.suites.options import options_of, require_at_least
from envpool_bridge.envs.suites.registry import registered_with_prefix
from envpool_bridge.errors import UserError

# Doom itself is sold, and not in the package: the files it must be copied from, by the scenario that plays it.
_SOLD_GAMES = {"doom.cfg": "doom.wad", "doom2.cfg": "doom2.wad"}


@dataclasses.dataclass(frozen=True)
class VizdoomOptions:
    """What a configuration may change of a scenario.

    Attributes:
        frame_skip: tics (1/35 s) per env step.
        screen_size: height and width of the screen that agents see; ViZDoom draws 120 x 160, which is made smaller.
        grayscale: one channel, [height, width]; otherwise three, [height, width, 3].
        frame_stack: how many of the newest screens (and game variables) agents see; 1 does not stack.
        game_variables: whether agents see the scenario's variables (health, ammunition, ...), where it has some.
        max_buttons_pressed: how many buttons may be pressed at once: an action is one such set. 0: any of them
            (a MultiDiscrete). None: as the id says, which is 1 for the scenarios.
    """

    frame_skip: int = 4
    screen_size: tuple[int, int] = (72, 128)
    grayscale: bool = False
    frame_stack: int = 1
    game_variables: bool = True
    max_buttons_pressed: int | None = None

    def __post_init__(self) -> None:
        require_at_least(1, frame_skip=self.frame_skip, frame_stack=self.frame_stack)
        require_at_least(8, screen_height=self.screen_size[0], screen_width=self.screen_size[1])
        require_at_least(0, max_buttons_pressed=self.max_buttons_pressed or 0)
        if self.frame_stack > 1 and not self.grayscale:
            raise UserError(f"frame_stack {self.frame_stack} stacks grey screens: set grayscale true, or frame_stack 1")


def vizdoom_source(env_id: str, kwargs: dict[str, Any], check_range: bool) -> GymnasiumSource:
    """Rows of a scenario.

    Raises:
        UserError: no such scenario, unknown or bad options, or a package or the game's own files are missing.
    """
    found = _registration(env_id)
    options = options_of(VizdoomOptions, "vizdoom", env_id, kwargs)
    make_env = partial(_make, found, options)
    return GymnasiumSource(make_env, env_id, options.frame_skip, check_range, frame_stack=options.frame_stack)


def make_vizdoom(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env:
    """A scenario; by default {"screen": [72, 128, 3] uint8, "gamevariables": [V] float32}, frame skip 4.

    Args:
        env_id: Vizdoom*.
        kwargs: fields of VizdoomOptions.

    Raises:
        UserError: no such scenario, unknown or bad options, or a package or the game's own files are missing.
    """
    from gymnasium.wrappers import FrameStackObservation

    options = options_of(VizdoomOptions, "vizdoom", env_id, kwargs)
    env = _make(_registration(env_id), options)
    return FrameStackObservation(env, options.frame_stack) if options.frame_stack > 1 else env


def _registration(env_id: str) -> Registration:
    require_package("vizdoom", "vizdoom")
    require_package("cv2", "vizdoom")
    import vizdoom
    import vizdoom.gymnasium_wrapper  # registers the ids

    found = registered_with_prefix(env_id, "vizdoom", ("Vizdoom",))
    sold = _SOLD_GAMES.get(found.kwargs["scenario_config_file"])
    if sold is not None and not (Path(vizdoom.scenarios_path) / sold).is_file():
        free = "VizdoomFreedoom" + env_id.removeprefix("VizdoomDoom")
        raise UserError(
            f"{env_id} plays the game that is sold: copy its {sold} to {vizdoom.scenarios_path}, or play Freedoom's levels "
            f"(ids VizdoomFreedoom1* and VizdoomFreedoom2*, such as {_nearest_free(free)})"
        )
    return found


def _nearest_free(env_id: str) -> str:
    import difflib

    known = [name for name in gymnasium.registry if name.startswith("VizdoomFreedoom")]
    return difflib.get_close_matches(env_id, known, n=1, cutoff=0.0)[0]


def _make(found: Registration, options: VizdoomOptions, render_mode: str | None = None) -> gymnasium.Env:
    """The scenario, one screen an observation: sources stack them."""
    given: dict[str, Any] = {"screen_format": "GRAY8" if options.grayscale else "RGB24"}
    if options.max_buttons_pressed is not None:
        given["max_buttons_pressed"] = options.max_buttons_pressed
    env = gymnasium.make(
        found,
        disable_env_checker=True,
        frame_skip=options.frame_skip,
        screen_resolution="RES_160X120",
        use_multi_binary_action_space=False,
        render_mode=render_mode,
        **given,
    )
    return VizdoomPreprocessing(env, options)


class VizdoomPreprocessing(gymnasium.Wrapper):
    """A scenario whose screens are made smaller, and whose episodes end as they should.

    - The screen is made smaller by the mean over the area of a pixel; other buffers (audio, automap, ...) are left out.
    - An episode that runs out of time is truncated, and not terminated as well. Doom shows nothing once an episode is over:
      its last screen is then the one before, so that the value of a truncated episode is that of a real state.
    - The game runs in a directory of its own, where it writes its settings, and ends when this process is killed.
    """

    def __init__(self, env: gymnasium.Env, options: VizdoomOptions) -> None:
        """Of an environment that `gymnasium.make` made of a Vizdoom* id."""
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
        """First observation of an episode; with a seed, the same one each time."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._last = self._seen(observation)
        return self._last, info

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], Any, bool, bool, dict[str, Any]]:
        """As many tics as the frame skip."""
        observation, reward, ended, timed_out, info = self.env.step(action)
        if not ended:
            self._last = self._seen(observation)
        truncated = bool(timed_out and not self._game.is_player_dead())
        return self._last, reward, bool(ended and not truncated), truncated, info

    def render(self) -> Any:
        """The game's screen as it is drawn, [120, 160, 3] uint8; once an episode is over, the last one there was."""
        if not self._game.is_episode_finished():
            self._drawn = self.env.render()
        return self._drawn

    def close(self) -> None:
        """Ends the game and removes its directory; idempotent."""
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
    """The space without the bounds that say nothing: ViZDoom declares the largest float of the mouse's movements."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _unbounded(child) for name, child in space.items()})
    if isinstance(space, spaces.Box):
        return spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return space


def _launcher(directory: Path) -> Path:
    """A program that starts the game in `directory`, and asks the kernel to end it together with the thread that did.

    ViZDoom's own library starts the game from a process of ours and cannot end it once that has been killed.
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
