"""Where tokens are kept between runs."""

import stat
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tenantry_sdk import FileStore, Secret, Token, errors

TOKEN: Final = Token(Secret("access-ü"), 1_772_366_400.5, Secret("refresh"), 3600.0)
HOLD: Final = """
import sys
from tenantry_sdk import FileStore
assert FileStore(sys.argv[1]).try_lock() is not None
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "token.json"


def test_token_is_kept(file: Path) -> None:
    store = FileStore(file)
    assert store.load() is None
    store.save(TOKEN)
    assert FileStore(file).load() == TOKEN
    store.clear()
    store.clear()
    assert store.load() is None


def test_only_its_owner_reads_it(file: Path) -> None:
    FileStore(file).save(TOKEN)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_file_that_others_can_read_is_refused(file: Path, mode: int) -> None:
    FileStore(file).save(TOKEN)
    file.chmod(mode)
    with pytest.raises(errors.ConfigurationError, match="chmod 600") as raised:
        FileStore(file).load()
    assert "refresh" not in str(raised.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"access_token": 1}', b"\xff\xfe", b'"refresh"']
)
def test_file_that_is_no_token_asks_to_sign_in(file: Path, content: bytes) -> None:
    FileStore(file).save(TOKEN)
    file.write_bytes(content)
    with pytest.raises(errors.ConfigurationError, match="sign in again"):
        FileStore(file).load()


def test_nothing_else_is_left_in_the_folder(file: Path) -> None:
    for _ in range(3):
        FileStore(file).save(TOKEN)
    assert [one.name for one in file.parent.iterdir()] == ["token.json"]


def test_another_process_has_to_wait(file: Path) -> None:
    store = FileStore(file)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        while_held = store.try_lock()
        other.kill()
        other.communicate()
    assert while_held is None
    afterwards = store.try_lock()
    assert afterwards is not None
    store.unlock(afterwards)
