"""The command line's top: commands are found, and imported only when they are called."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tenantry import __version__
from tenantry.cli import main

COMMANDS = (
    "serve",
    "worker",
    "migrate",
    "demo",
    "doctor",
    "admin",
    "tenants",
    "events",
    "reconcile",
    "backfill",
    "listen",
    "trigger",
    "auth",
    "keys",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_found(name: str) -> None:
    assert isinstance(main, click.Group)
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.help


def test_help_lists_every_command_in_order() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    positions = [shown.output.index(f"\n  {name} ") for name in COMMANDS]
    assert positions == sorted(positions)


def test_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["conquer"]).exit_code == 2


def test_version_is_shown() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


def test_help_imports_neither_server_nor_database() -> None:
    code = (
        "import sys; from tenantry.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"litestar", "psycopg", "uvicorn", "procrastinate"} & set(done.stderr.split())
