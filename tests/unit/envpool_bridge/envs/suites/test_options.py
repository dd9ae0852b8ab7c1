"""Options of a suite come from a JSON object; what does not fit is refused with what would."""

import dataclasses
from typing import Literal

import pytest

from envpool_bridge.envs.suites.options import options_of, validate_at_least
from envpool_bridge.errors import UserError


@dataclasses.dataclass(frozen=True)
class Options:
    frames: int = 4
    chance: float = 0.5
    grey: bool = True
    size: tuple[int, int] = (3, 5)
    mode: int | None = None
    view: Literal["near", "far"] = "near"

    def __post_init__(self):
        validate_at_least(1, frames=self.frames)


def made(**kwargs):
    return options_of(Options, "toys", "Toy-v0", kwargs)


def refusal(**kwargs):
    with pytest.raises(UserError) as refused:
        made(**kwargs)
    return str(refused.value)


def test_options_have_defaults():
    assert made() == Options()
    assert made(frames=2, view="far") == Options(frames=2, view="far")


def test_json_values_become_the_fields_own():
    given = made(frames=1, chance=1, grey=False, size=[7, 9], mode=3, view="far")
    assert given == Options(1, 1.0, False, (7, 9), 3, "far")
    assert made(mode=None).mode is None


def test_unknown_option_is_rejected_with_the_known_ones():
    assert refusal(frame=2) == (
        "Toy-v0 of suite 'toys': unknown option 'frame'; did you mean frames? Its options: frames (default 4), "
        "chance (default 0.5), grey (default True), size (default (3, 5)), mode (default None), view (default 'near')"
    )
    assert "unknown option 'xyz'. Its options: frames" in refusal(xyz=1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("frames", 2.0, "an integer"),
        ("frames", True, "an integer"),
        ("frames", "2", "an integer"),
        ("frames", None, "an integer"),
        ("chance", "half", "a number"),
        ("chance", True, "a number"),
        ("grey", 1, "true or false"),
        ("size", 3, "[an integer, an integer]"),
        ("size", [3], "[an integer, an integer]"),
        ("size", [3, 4.5], "[an integer, an integer]"),
        ("mode", 1.5, "an integer or null"),
        ("view", "middle", "one of 'near', 'far'"),
    ],
)
def test_option_of_another_type_is_rejected_with_its_type(name, value, expected):
    text = refusal(**{name: value})
    assert text == f"Toy-v0 of suite 'toys': option {name} must be {expected}, got {value!r}"


def test_option_that_is_too_small_is_rejected():
    assert refusal(frames=0) == "option frames must be at least 1, got 0"
