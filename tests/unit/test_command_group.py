"""The command line's top: commands are found, and imported only when they are called."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from tenantry import __version__
from tenantry_cli.command_group import LazyGroup
from tenantry_cli.commands import main
from tests.support.cases import cases

COMMANDS = (
    "login",
    "logout",
    "whoami",
    "status",
    "keys",
    "projects",
    "tenants",
    "members",
    "events",
    "plans",
    "config",
    "completion",
    "listen",
    "trigger",
    "demo",
    "serve",
    "worker",
    "migrate",
    "doctor",
    "admin",
    "reconcile",
    "backfill",
    "help",
    "version",
)
GROUPS = ("keys", "projects", "tenants", "members", "events", "config")
HEAVY = {"httpx2", "psycopg", "litestar", "rich", "asyncio", "uvicorn", "procrastinate"}


def imported_by(*arguments: str, folder: Path = Path()) -> set[str]:
    """The modules that a command imports, which is one that ends by itself; ``folder`` is its
    home.
    """
    code = (
        "import sys; from tenantry_cli.commands import main\n"
        f"try: main({list(arguments)})\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


@cases("name", COMMANDS)
def test_command_is_found(name: str) -> None:
    assert isinstance(main, click.Group)
    _, command, _ = main.resolve_command(click.Context(main), [name])
    assert command is not None
    assert command.help


def test_help_begins_with_eight_commands() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    _, _, listed = shown.output.partition("Begin with:\n")
    names = re.findall(r"^  (\w+)  ", listed, re.MULTILINE)
    assert names == ["demo", "login", "status", "keys", "tenants", "plans", "trigger", "doctor"]
    assert listed.endswith("\ntenantry help all lists every command, by group.\n")


def test_help_all_lists_every_command() -> None:
    shown = CliRunner().invoke(main, ["help", "all"])
    assert shown.exit_code == 0
    listed = set(re.findall(r"^  ([a-z]\S*(?: \S+)*)", shown.output, re.MULTILINE))
    listed_commands = {path for path in listed if not path.startswith("-")}
    paths = {path.removeprefix("tenantry ") for path, _ in commands(main)}
    groups = {path.rpartition(" ")[0] for path in paths}
    inner = {path for path in paths if path.startswith("demo ")}  # of a group that is not imported
    assert listed_commands == paths - (groups - {"demo"}) - inner - {"tenantry"}
    assert "  --base-url URL " in shown.output


def test_help_of_a_command_names_the_connection_options_in_one_line() -> None:
    shown = CliRunner().invoke(main, ["keys", "list", "--help"], terminal_width=80).output
    assert shown.endswith(
        "\n\n  Also --base-url, --profile, --org, --api-key-file: see tenantry help all.\n"
    )


def test_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["conquer"]).exit_code == 2


@cases(
    ("typed", "suggestion"),
    [
        ("tenant list", "No such command 'tenant'. Did you mean 'tenants'?"),
        ("keys lst", "No such command 'lst'. Did you mean 'list'?"),
        ("demo tokn", "No such command 'tokn'. Did you mean 'token'?"),
        ("help keys creat", "No such command 'creat'. Did you mean 'create'?"),
        ("keys list --statsu active", "No such option '--statsu'. Did you mean '--status'?"),
        ("--verson", "No such option '--verson'. Did you mean '--version'?"),
    ],
)
def test_misspelled_name_gets_a_suggestion(typed: str, suggestion: str) -> None:
    done = CliRunner().invoke(main, typed.split())
    assert done.exit_code == 2
    assert suggestion in done.output


@cases("names", [(), ("keys",), ("keys", "create"), ("demo", "reset"), ("serve",)])
def test_help_command_equals_the_help_option(names: tuple[str, ...]) -> None:
    by_command = CliRunner().invoke(main, ["help", *names], prog_name="tenantry")
    by_option = CliRunner().invoke(main, [*names, "--help"], prog_name="tenantry")
    assert (by_command.exit_code, by_command.output) == (0, by_option.output)


def test_version_command_equals_the_version_option() -> None:
    by_command, by_option = (
        CliRunner().invoke(main, [given]) for given in ("version", "--version")
    )
    assert (by_command.exit_code, by_command.output) == (0, by_option.output)


@cases(
    "arguments",
    [["serve"], ["demo"], ["admin", "show-tenant", "a"], ["admin", "explain-tenant", "a"]],
)
def test_profile_before_a_command_without_a_service_is_rejected(arguments: list[str]) -> None:
    done = CliRunner().invoke(main, ["--profile", "work", *arguments], prog_name="tenantry")
    assert done.exit_code == 2
    assert "uses no service, so it takes no --profile." in done.output


def test_version_is_shown() -> None:
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


def test_service_command_does_not_read_entry_points(tmp_path: Path) -> None:
    assert "importlib.metadata" not in imported_by("whoami", folder=tmp_path)


def test_help_imports_neither_server_nor_database() -> None:
    assert not HEAVY & imported_by("--help")


@cases("group", GROUPS)
def test_help_of_a_group_imports_none_of_its_commands(group: str) -> None:
    modules = imported_by(group, "--help")
    assert not HEAVY & modules
    assert f"tenantry_cli.{group}" not in modules


@pytest.mark.parametrize(
    "command",
    [
        ["whoami"],
        ["status"],
        ["keys", "list"],
        ["projects", "list"],
        ["config", "get", "scope"],
        ["logout"],
    ],
)
def test_command_that_uses_a_service_imports_nothing_of_the_service(
    command: list[str], tmp_path: Path
) -> None:
    modules = imported_by(*command, "--profile", "missing", folder=tmp_path)
    assert "tenantry_cli.client_configuration" in modules
    assert not {name for name in modules if name.partition(".")[0] == "tenantry"}


@cases("group", GROUPS)
def test_group_finds_each_command_that_it_lists(group: str) -> None:
    assert isinstance(main, click.Group)
    found = main.get_command(click.Context(main), group)
    assert isinstance(found, LazyGroup)
    context = click.Context(found)
    for name in found.list_commands(context):
        _, command, _ = found.resolve_command(context, [name])
        assert command is not None
        assert command.name == name
        assert command.help


def test_unknown_command_of_a_group_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["keys", "conquer"]).exit_code == 2


@pytest.mark.parametrize("width", [80, 120])
def test_help_fits_the_terminal(width: int) -> None:
    for arguments in (
        ["--help"],
        ["keys", "--help"],
        ["keys", "create", "--help"],
        ["login", "--help"],
    ):
        shown = CliRunner().invoke(main, arguments, terminal_width=width).output
        assert max(map(len, shown.splitlines())) <= width


def commands(
    command: click.Command, name: str = "tenantry", parent: click.Context | None = None
) -> Iterator[tuple[str, click.Context]]:
    """Every command with its path, as on a terminal of 80 columns."""
    context = click.Context(command, parent, info_name=name, terminal_width=80)
    yield context.command_path, context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            _, child, _ = command.resolve_command(context, [each])
            assert child is not None
            yield from commands(child, each, context)


ALL_COMMANDS: Final = dict(commands(main))


def test_help_of_every_command_is_complete() -> None:
    for path, context in ALL_COMMANDS.items():
        command, text = context.command, context.get_help()
        assert command.help, path
        assert not command.hidden, path
        assert [
            each.name for each in command.params if isinstance(each, click.Option) and not each.help
        ] == [], path
        assert [line for line in text.splitlines() if len(line) > 80] == [], path


def test_help_of_a_command_has_an_example() -> None:
    for path, context in ALL_COMMANDS.items():
        if context.command.params and not isinstance(context.command, click.Group):
            _, *lines = context.get_help().splitlines()  # without the usage
            assert [line for line in lines if re.search(rf"{path}\b", line)], lines
