"""The signing secret of `tenantry listen`."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenantry.settings import DEMO_FLAG
from tenantry_devkit.local.endpoint import load_or_create_secret, secret_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secret_is_created_once_with_private_permissions(tmp_path: Path) -> None:
    path = secret_path({"XDG_STATE_HOME": str(tmp_path / "state")})
    secret = load_or_create_secret(path)
    assert secret.reveal().startswith("whsec_")
    assert len(secret.reveal()) > 40
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert load_or_create_secret(path) == secret
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_concurrent_creation_gives_one_secret(tmp_path: Path) -> None:
    path = tmp_path / "tenantry" / "listen.secret"
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(load_or_create_secret, [path] * 32))) == 1


def test_permissions_of_a_readable_file_are_reduced(tmp_path: Path) -> None:
    path = tmp_path / "listen.secret"
    path.write_text("whsec_0123456789abcdef0123\n")
    path.chmod(0o644)
    assert load_or_create_secret(path).reveal() == "whsec_0123456789abcdef0123"
    assert mode(path) == 0o600


@pytest.mark.parametrize(
    "text", ["", "whsec_short", "sk_test_0123456789abcdef0123", "whsec_ü0123456789abcdef0123"]
)
def test_damaged_file_is_reported_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "listen.secret"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"listen\.secret holds no signing secret"):
        load_or_create_secret(path)
    assert path.read_text() == text


def test_secret_of_a_demo_is_in_its_folder(tmp_path: Path) -> None:
    values = {DEMO_FLAG: "true", "TENANTRY_DATA_DIR": str(tmp_path), "XDG_STATE_HOME": "/state"}
    assert secret_path(values) == tmp_path / "listen.secret"


def test_relative_state_folder_is_ignored() -> None:
    assert secret_path({"XDG_STATE_HOME": "state"}) == secret_path({})
    assert secret_path({}).is_absolute()
