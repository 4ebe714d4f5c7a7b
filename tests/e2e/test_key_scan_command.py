"""``tenantry keys scan`` without settings, database or connection; and as a git hook."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tenantry.domain.api_keys import DEFAULT_FORMAT
from tenantry.domain.permissions import Mode
from tests.support.command_runner import invoke
from tests.support.documentation import block_of

KEY: Final = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(range(32)))
SHOWN: Final = f"{KEY[:13]}...{KEY[-4:]}"
HOOKS: Final = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"
NO_SETTINGS: Final = {
    "PATH": os.environ["PATH"],
    "DATABASE_URL": "postgresql://missing@127.0.0.1:1/nowhere",
    "LANG": "C.UTF-8",
}


def scanned(*arguments: str, folder: Path, given: bytes = b"") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command, which never shows a whole key."""
    done = invoke("keys", "scan", *arguments, folder=folder, given=given, **NO_SETTINGS)
    assert KEY not in done.out + done.err
    return done.code, done.out, done.err


def test_files_without_keys_exit_with_0(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("svc_live_ is how keys begin\n")
    assert scanned(".", folder=tmp_path) == (0, "", "No API key in 1 file, 0.0 MB.\n")


def test_report_names_place_and_next_step(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f'\nTOKEN = "{KEY}"\n')
    code, out, err = scanned("a.py", folder=tmp_path)
    assert (code, out) == (1, f"a.py:2:10: {SHOWN}\n")
    assert err.startswith("1 API key in 1 file (1 file, 0.0 MB looked through).\n")
    assert "/api/v1/api-keys/report-leak" in err


def test_guide_shows_what_a_scan_prints(tmp_path: Path) -> None:
    command, _, printed = block_of("how-to/leaks.md", "$ tenantry keys scan").partition("\n")
    for path, line, column in re.findall(r"^([\w/.]+):(\d+):(\d+): svc_", printed, re.MULTILINE):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n" * (int(line) - 1) + " " * (int(column) - 1) + KEY)
    code, out, err = scanned(*command.split()[4:], folder=tmp_path)
    assert (code, out + err) == (1, printed.replace("svc_live_xHrV...e5Ds", SHOWN))


def test_standard_input_is_scanned(tmp_path: Path) -> None:
    code, out, _ = scanned("-", folder=tmp_path, given=f"+{KEY}\n".encode())
    assert (code, out) == (1, f"-:1:2: {SHOWN}\n")


def test_json_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(KEY)
    code, out, _ = scanned("--json", "a", "nowhere", folder=tmp_path)
    assert code == 1
    assert msgspec.json.decode(out) == {
        "keys": [{"path": "a", "line": 1, "column": 1, "start": KEY[:13], "last4": KEY[-4:]}],
        "unreadable": [{"path": "nowhere", "reason": "No such file or directory"}],
        "files": 1,
        "bytes": 58,
    }


def test_unreadable_file_is_reported_and_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("harmless")
    code, out, err = scanned("nowhere", "a", folder=tmp_path)
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "nowhere: cannot be read: No such file or directory"


@pytest.mark.parametrize("arguments", [(), ("--no-such-option", "a")])
def test_usage_error_exits_with_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert scanned(*arguments, folder=tmp_path)[0] == 2


def test_control_characters_in_file_names_are_replaced(tmp_path: Path) -> None:
    for name in (b"new\nline", b"not \xff utf-8", b"\x1b[31mred"):
        (tmp_path / os.fsdecode(name)).write_text(KEY)
    code, out, _ = scanned(".", folder=tmp_path)
    assert code == 1
    assert sorted(out.splitlines()) == [
        f"./new�line:1:1: {SHOWN}",
        f"./not � utf-8:1:1: {SHOWN}",
        f"./�[31mred:1:1: {SHOWN}",
    ]
    assert scanned("--json", ".", folder=tmp_path)[0] == 1


def test_large_tree_is_scanned_in_order(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"file-{number:04}").write_text(KEY if number % 100 == 0 else "harmless\n" * 50)
    code, out, err = scanned(".", folder=tmp_path)
    assert code == 1
    assert out.splitlines() == [
        f"./file-{number:04}:1:1: {SHOWN}" for number in range(0, 2000, 100)
    ]
    assert err.startswith("20 API keys in 20 files (2,000 files,")


def test_neither_database_nor_server_is_imported() -> None:
    code = (
        "import sys; from tenantry.cli import main\n"
        "try: main(['keys', 'scan', '-'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert "tenantry.cli.key_scan" in done.stderr.split()
    assert not {"litestar", "psycopg", "uvicorn", "procrastinate", "asyncio", "dotenv"} & set(
        done.stderr.split()
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with the hook of the documentation."""
    text = block_of("how-to/leaks.md", "staged=")
    git(tmp_path, "init", "-q")
    hook = tmp_path / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\n{text}".replace("tenantry", f"{sys.executable} -m tenantry", 1))
    hook.chmod(0o755)
    return tmp_path


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    identity = ("-c", "user.name=A", "-c", "user.email=a@acme.example")
    environment = {
        **NO_SETTINGS,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
    }
    return subprocess.run(
        ["git", *identity, *arguments],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_git_hook_rejects_a_commit_with_a_key(repository: Path) -> None:
    (repository / "with space.py").write_text(f"KEY = '{KEY}'\n")
    git(repository, "add", ".")
    refused = git(repository, "commit", "-qm", "one")
    assert refused.returncode == 1
    assert f"with space.py:1:8: {SHOWN}" in refused.stdout + refused.stderr


def test_git_hook_scans_the_content_of_the_commit(repository: Path) -> None:
    (repository / "a.py").write_text(f"KEY = '{KEY}'\n")
    (repository / "-").write_text("nothing")
    (repository / "link").symlink_to("nowhere")
    git(repository, "add", ".")
    (repository / "a.py").write_text("KEY = ''\n")
    refused = git(repository, "commit", "-qm", "one")
    assert refused.returncode == 1
    assert "a.py:1:8" in refused.stdout + refused.stderr
    git(repository, "add", ".")
    assert git(repository, "commit", "-qm", "one").returncode == 0


def test_git_hook_scans_a_file_named_like_standard_input(repository: Path) -> None:
    (repository / "-").write_text(KEY)
    git(repository, "add", "./-")
    assert git(repository, "commit", "-qm", "one").returncode == 1


def test_git_hook_accepts_other_commits(repository: Path) -> None:
    (repository / "a.py").write_text("KEY = os.environ['API_KEY']\n")
    git(repository, "add", ".")
    assert git(repository, "commit", "-qm", "one").returncode == 0
    git(repository, "rm", "-q", "a.py")
    assert git(repository, "commit", "-qm", "two").returncode == 0


def test_pre_commit_configuration_runs_the_command(tmp_path: Path) -> None:
    hook = dict(re.findall(r"^(?:- |  )(\w+): (.*)$", HOOKS.read_text("utf-8"), re.MULTILINE))
    assert {"id", "name", "entry", "language"} <= hook.keys()
    words = hook["entry"].split()
    assert words[:3] == ["tenantry", "keys", "scan"]
    (tmp_path / "-a.py").write_text(KEY)
    assert scanned(*words[3:], "-a.py", folder=tmp_path)[:2] == (1, f"-a.py:1:1: {SHOWN}\n")
