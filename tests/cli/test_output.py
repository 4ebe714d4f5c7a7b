"""What is written: streams, widths, colours, and terminals and pipes that end too early."""

import re
from typing import Literal

import psycopg
import pytest
from psycopg import sql

from tests.cli.support import Place, in_shell, on_terminal

WIDTH = 80
MANY = 205
LONG = "A name that is far longer than what is left of a line, with Größe and 日本語 in it"


async def test_key_in_a_variable_of_the_shell(place: Place) -> None:
    done = await in_shell(
        place,
        "KEY=$(tenantry keys create --name CI --scope projects:read --expires-in 1h)"
        " && TENANTRY_API_KEY=$KEY tenantry whoami",
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"may +projects:read\n", done.stdout)


@pytest.fixture
async def large_place(place: Place) -> Place:
    """An organization with `MANY` projects, whose list is more than a pipe holds."""
    async with await psycopg.AsyncConnection.connect(place.served.service.conninfo) as connection:
        await connection.execute(
            "INSERT INTO projects (id, org_id, mode, name, description, created_at, updated_at) "
            "SELECT format('proj_%%s_%%s', %(org)s::text, n), %(org)s, 'live', 'p' || n, repeat('x', 400), at, at "
            "FROM (SELECT n, now() + n * interval '1 second' AS at FROM generate_series(0, %(many)s - 1) AS n) AS made",
            {"org": place.organization.id, "many": MANY},
        )
    return place


async def test_pipe_that_ends_early_ends_the_list_without_a_word(large_place: Place) -> None:
    for options in ("--json", ""):
        list_projects = f"tenantry projects list {options}"
        done = await in_shell(large_place, f"{list_projects} | (read -r line; echo $line); echo ${{PIPESTATUS[0]}}")
        assert done.stdout.splitlines()[1:] == ["0"]
        assert done.stderr == ""


async def test_list_goes_over_all_pages_or_as_far_as_it_is_wanted(large_place: Place) -> None:
    whole = (await large_place.done("projects", "list", "--json")).splitlines()
    assert len(set(whole)) == MANY
    assert (await large_place.done("projects", "list", "--json", "--limit", "150")).splitlines() == whole[:150]
    table = (await large_place.done("projects", "list")).splitlines()
    assert len(table) == MANY + 1
    assert sum(line.startswith("ID ") for line in table) == 1
    assert table[-1].split()[1] == "p0"


async def test_table_fits_eighty_columns_and_leaves_ids_whole(place: Place) -> None:
    key_id, _ = await place.key("a:b", name=LONG)
    shown = await on_terminal(place.home, place.values, "keys", "list", columns=WIDTH)
    assert shown.code == 0
    lines = shown.text.splitlines()
    assert any(line.startswith(key_id) for line in lines)
    assert max(map(cells, lines)) <= WIDTH
    name = "".join(line[38:].split("active")[0].strip() for line in lines[1:] if not line.startswith(" " * 60))
    assert name.replace(" ", "").startswith(LONG.replace(" ", "")[:20])


def cells(line: str) -> int:
    """The columns that a line takes: two for each of the wide characters here."""
    return sum(2 if "\u3000" < character < "\uff00" else 1 for character in line)


async def test_narrow_terminal_leaves_ids_whole(place: Place) -> None:
    key_id, _ = await place.key("a:b", name=LONG)
    assert key_id in (await place.at_terminal("", "keys", "list", COLUMNS="40")).out


async def test_wide_terminal_shows_more(place: Place) -> None:
    await place.key("projects:read")
    assert "SCOPES" in (await place.at_terminal("", "keys", "list", COLUMNS="160")).out
    assert "SCOPES" not in (await place.at_terminal("", "keys", "list")).out


async def test_long_name_goes_into_a_file_in_one_line(place: Place) -> None:
    await place.key("a:b", name=LONG)
    assert LONG in await place.done("keys", "list")


async def test_colours_are_for_terminals_alone(place: Place) -> None:
    assert "\x1b" not in await place.done("keys", "list")
    assert "\x1b[32m" in (await on_terminal(place.home, place.values, "keys", "list")).shown
    for values in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        shown = (await place.at_terminal("", "keys", "list", **values)).out
        assert "active" in shown
        assert "\x1b[32m" not in shown
    assert "\x1b[32m" in await place.done("keys", "list", FORCE_COLOR="1")


async def test_what_goes_into_a_file_is_whole_whatever_is_said_about_colours(place: Place) -> None:
    await place.key("a:b", name=LONG)
    shown = await place.done("keys", "list", FORCE_COLOR="1", NO_COLOR="1")
    assert LONG in shown
    assert "SCOPES" in shown


def name_of_an_older_row(place: Place, table: Literal["api_keys", "projects"], name: str) -> None:
    """Give the rows of the organization a name that is refused now."""
    change = sql.SQL("UPDATE {} SET name = %s WHERE org_id = %s").format(sql.Identifier(table))
    with psycopg.connect(place.served.service.conninfo) as connection:
        connection.execute(change, (name, place.organization.id))


async def test_names_of_others_command_no_terminal_in_a_question(place: Place) -> None:
    key_id, _ = await place.key("a:b")
    name_of_an_older_row(place, "api_keys", "harmless, revoked\x9b8m \u202e")
    done = await place.at_terminal("n\n", "keys", "revoke", key_id)
    assert "harmless, revoked" in done.err
    assert not {"\x9b", "\u202e"} & set(done.err)


async def test_text_of_others_commands_no_terminal(place: Place) -> None:
    await place.done("projects", "create", "--name", "a")
    name_of_an_older_row(place, "projects", "a\x9b31mb")
    shown = await place.done("projects", "list")
    assert "a\N{REPLACEMENT CHARACTER}31mb" in shown


async def test_terminal_without_unicode_is_no_failure(place: Place) -> None:
    await place.done("projects", "create", "--name", "日本")
    for options in ([], ["--json"]):
        ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        done = await place.home.run_process("projects", "list", *options, **place.values, **ascii_only)
        assert done.code == 0, done.err
