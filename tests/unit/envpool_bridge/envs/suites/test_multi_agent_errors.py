"""What a suite of multi-agent environments does not have is refused with what it has, before anything starts."""

import json

import pytest

from envpool_bridge.envs.config import EnvConfig
from envpool_bridge.errors import UserError


def refusal(env_id, suite, **kwargs):
    with pytest.raises(UserError) as refused:
        EnvConfig(env_id, suite, json.dumps(kwargs)).source().spec()
    return str(refused.value)


def test_suite_rejects_unknown_ids_and_options():
    pytest.importorskip("mpe2")
    assert "did you mean mpe2/simple_spread_v3" in refusal("simple_spred_v3", "mpe")
    assert "expected the path of a module" in refusal("nothing", "pettingzoo")
    assert "has no environment" in refusal("envpool_bridge/pool", "pettingzoo")
    assert "cannot be imported: No module named 'nowhere'" in refusal("nowhere/env", "pettingzoo")
    assert "bad kwargs {'cycles': 3}" in refusal("simple_spread_v3", "mpe", cycles=3)
    assert "option team_reward must be one of 'own', 'sum', 'mean', got 'all'" in refusal(
        "simple_spread_v3", "mpe", team_reward="all"
    )


def test_pettingzoo_rejects_environments_without_their_package(monkeypatch, tmp_path):
    pytest.importorskip("pettingzoo")
    (tmp_path / "needs_much.py").write_text("def parallel_env():\n    import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "needs a package: No module named 'a_package" in refusal("needs_much", "pettingzoo")


def test_global_state_is_rejected_for_games_without_one():
    pytest.importorskip("pettingzoo")
    assert "offers no global state" in refusal("pettingzoo/classic/tictactoe_v3", "pettingzoo", global_state=True)


def test_hanabi_rejects_unknown_games_and_options():
    pytest.importorskip("pyspiel")
    assert "did you mean Hanabi-Small" in refusal("Hanabi-small", "hanabi")
    assert "option players must be 2 to 5, got 6" in refusal("Hanabi-Full", "hanabi", players=6)
    assert "unknown option 'player'; did you mean players?" in refusal("Hanabi-Full", "hanabi", player=2)


def test_overcooked_rejects_unknown_layouts_and_options():
    pytest.importorskip("overcooked")
    assert "did you mean cramped_room" in refusal("crampd_room", "overcooked")
    assert "is for 1 cooks: expected 2" in refusal("cramped_room_single", "overcooked")
    assert "option horizon must be at least 1, got 0" in refusal("cramped_room", "overcooked", horizon=0)
