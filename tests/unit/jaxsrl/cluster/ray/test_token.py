import stat

import pytest

from envpool_bridge.errors import UserError
from jaxsrl.cluster.ray.token import make_token, token_of


def test_a_token_is_for_this_user_alone_and_unlike_any_other(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert token_of(tmp_path) == {}
    wanted = make_token(tmp_path)
    path = tmp_path / "token"
    assert wanted == token_of(tmp_path) == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_text()
    assert len(first) == 64
    path.unlink()
    make_token(tmp_path)
    assert path.read_text() != first


def test_a_user_who_has_decided_about_tokens_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert make_token(tmp_path) == token_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_cluster_file_in_a_shared_directory_is_ignored(tmp_path):
    pytest.importorskip("ray")
    from jaxsrl.cluster.ray.local_cluster import joined_local_cluster

    tmp_path.chmod(0o755)
    for told in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="which other users can write to"), joined_local_cluster(str(told)):
            pytest.fail("it was joined")
