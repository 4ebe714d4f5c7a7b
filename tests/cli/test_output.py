"""Output: streams, widths, colors, closed terminals and pipes."""

import re
from typing import Literal

import psycopg
import pytest
from psycopg import sql

from tests.cli.command_support import Workspace, in_shell, on_terminal

WIDTH = 80
MANY = 205
LONG = "A name that is far longer than the rest of a line, with Größe and 日本語 in it, cut"


async def test_key_in_a_variable_of_the_shell(workspace: Workspace) -> None:
    done = await in_shell(
        workspace,
        "KEY=$(tenantry keys create --name CI --scope projects:read --expires-in 1h)"
        " && TENANTRY_API_KEY=$KEY tenantry whoami",
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"may +projects:read\n", done.stdout)


@pytest.fixture
async def large_workspace(workspace: Workspace) -> Workspace:
    """An organization with `MANY` projects, whose list is larger than a pipe's buffer."""
    async with await psycopg.AsyncConnection.connect(
        workspace.served.service.conninfo
    ) as connection:
        await connection.execute(
            "INSERT INTO projects (id, org_id, mode, name, description, created_at, updated_at) "
            "SELECT format('proj_%%s_%%s', %(org)s::text, n), %(org)s, 'live', 'p' || n, repeat('x', 400), at, at "
            "FROM (SELECT n, now() + n * interval '1 second' AS at FROM generate_series(0, %(many)s - 1) AS n) AS made",
            {"org": workspace.organization.id, "many": MANY},
        )
    return workspace


async def test_closed_pipe_ends_the_list_silently(large_workspace: Workspace) -> None:
    for options in ("--json", ""):
        list_projects = f"tenantry projects list {options}"
        done = await in_shell(
            large_workspace,
            f"{list_projects} | (read -r line; echo $line); echo ${{PIPESTATUS[0]}}",
        )
        assert done.stdout.splitlines()[1:] == ["0"]
        assert done.stderr == ""


async def test_list_reads_all_pages_or_up_to_the_limit(large_workspace: Workspace) -> None:
    whole = (await large_workspace.done("projects", "list", "--json")).splitlines()
    assert len(set(whole)) == MANY
    assert (
        await large_workspace.done("projects", "list", "--json", "--limit", "150")
    ).splitlines() == whole[:150]
    table = (await large_workspace.done("projects", "list")).splitlines()
    assert len(table) == MANY + 1
    assert sum(line.startswith("ID ") for line in table) == 1
    assert table[-1].split()[1] == "p0"


async def test_table_fits_eighty_columns_and_leaves_ids_whole(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b", name=LONG)
    shown = await on_terminal(workspace.home, workspace.values, "keys", "list", columns=WIDTH)
    assert shown.code == 0
    lines = shown.text.splitlines()
    assert any(line.startswith(key_id) for line in lines)
    assert max(map(cells, lines)) <= WIDTH
    name = "".join(
        line[38:].split("active")[0].strip() for line in lines[1:] if not line.startswith(" " * 60)
    )
    assert name.replace(" ", "").startswith(LONG.replace(" ", "")[:20])


def cells(line: str) -> int:
    """Return the width of a line: two columns for each of the wide characters here."""
    return sum(2 if "\u3000" < character < "\uff00" else 1 for character in line)


async def test_narrow_terminal_leaves_ids_whole(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b", name=LONG)
    assert key_id in (await workspace.at_terminal("", "keys", "list", COLUMNS="40")).out


async def test_wide_terminal_shows_more(workspace: Workspace) -> None:
    await workspace.key("projects:read")
    assert "SCOPES" in (await workspace.at_terminal("", "keys", "list", COLUMNS="160")).out
    assert "SCOPES" not in (await workspace.at_terminal("", "keys", "list")).out


async def test_long_name_is_one_line_in_a_file(workspace: Workspace) -> None:
    await workspace.key("a:b", name=LONG)
    assert LONG in await workspace.done("keys", "list")


async def test_colors_are_only_for_terminals(workspace: Workspace) -> None:
    assert "\x1b" not in await workspace.done("keys", "list")
    assert "\x1b[32m" in (await on_terminal(workspace.home, workspace.values, "keys", "list")).shown
    for values in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        shown = (await workspace.at_terminal("", "keys", "list", **values)).out
        assert "active" in shown
        assert "\x1b[32m" not in shown
    assert "\x1b[32m" in await workspace.done("keys", "list", FORCE_COLOR="1")


async def test_file_output_is_complete_with_forced_color(workspace: Workspace) -> None:
    await workspace.key("a:b", name=LONG)
    shown = await workspace.done("keys", "list", FORCE_COLOR="1", NO_COLOR="1")
    assert LONG in shown
    assert "SCOPES" in shown


def name_of_an_older_row(
    workspace: Workspace, table: Literal["api_keys", "projects"], name: str
) -> None:
    """Give the rows of the organization a name that is rejected now."""
    change = sql.SQL("UPDATE {} SET name = %s WHERE org_id = %s").format(sql.Identifier(table))
    with psycopg.connect(workspace.served.service.conninfo) as connection:
        connection.execute(change, (name, workspace.organization.id))


async def test_control_characters_in_a_confirmation_are_replaced(workspace: Workspace) -> None:
    key_id, _ = await workspace.key("a:b")
    name_of_an_older_row(workspace, "api_keys", "harmless, revoked\x9b8m \u202e")
    done = await workspace.at_terminal("n\n", "keys", "revoke", key_id)
    assert "harmless, revoked" in done.err
    assert not {"\x9b", "\u202e"} & set(done.err)


async def test_control_characters_in_a_list_are_replaced(workspace: Workspace) -> None:
    await workspace.done("projects", "create", "--name", "a")
    name_of_an_older_row(workspace, "projects", "a\x9b31mb")
    shown = await workspace.done("projects", "list")
    assert "a\N{REPLACEMENT CHARACTER}31mb" in shown


async def test_terminal_without_unicode_works(workspace: Workspace) -> None:
    await workspace.done("projects", "create", "--name", "日本")
    for options in ([], ["--json"]):
        ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        done = await workspace.home.run_process(
            "projects", "list", *options, **workspace.values, **ascii_only
        )
        assert done.code == 0, done.err
