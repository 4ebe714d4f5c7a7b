"""The texts that commands print: their own name, and messages of other programs."""

import os
import sys
from pathlib import Path

import pytest

from tenantry_cli.output import own_command, printable_lines


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script in a virtual environment that is not activated, in a folder with a space; the
    current one is above.
    """
    script = tmp_path / "a b" / "bin" / "tenantry"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.defpath)
    return script


def test_command_on_the_path_is_named(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(installed.parent))
    for given in ("a b/bin/tenantry", str(installed)):
        monkeypatch.setattr(sys, "argv", [given])
        assert own_command() == "tenantry"


def test_command_off_the_path_is_what_was_typed(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in ("a b/bin/tenantry", str(installed)):
        monkeypatch.setattr(sys, "argv", [given])
        assert own_command() == f"'{given}'"


def test_another_command_of_this_name_on_the_path_is_ignored(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tenantry").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.setattr(sys, "argv", [str(installed)])
    assert own_command() == f"'{installed}'"


def test_module_is_run_by_its_interpreter(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(installed.parent / "__main__.py")])
    monkeypatch.setattr(sys, "executable", "/opt/python")
    assert own_command() == "/opt/python -m tenantry"


@pytest.mark.parametrize(
    ("program", "printed"), [("uvx", "uvx"), ("pipx", "pipx run"), ("another", "uvx")]
)
def test_command_of_one_run_is_run_again_by_the_program_on_the_path(
    program: str, printed: str, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pipx can bring its own uv, which is on no path; uvx may have been started by its
    path.
    """
    (installed.parent / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(installed.parent))
    assert own_command("/home/me/.cache/uv/archive-v0/Zb_2") == f"{printed} 'tenantry[demo]'"


def test_blanks_of_a_message_are_spaces_and_controls_are_replaced() -> None:
    assert (
        printable_lines("refused\n\tIs it\xa0running?\x1b[2J")
        == "refused\n Is it running?\N{REPLACEMENT CHARACTER}[2J"
    )
