"""What is written: streams, widths, colours, and terminals and pipes that end too early."""

import asyncio
import os
import re
import subprocess
import sys
from typing import Any

from tests.cli.support import Home, Place, on_terminal
from tests.sdk.support import serving

WIDTH = 80
MANY = 205
LONG = "A name that is far longer than what is left of a line, with Größe and 日本語 in it"


def piped(place: Place, script: str, **values: str) -> subprocess.CompletedProcess[str]:
    """A script of the shell in which ``tenantry`` is the command."""
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **place.home.values, **place.values, **values}
    return subprocess.run(
        ["bash", "-c", f"tenantry() {{ {sys.executable} -m tenantry \"$@\"; }}; {script}"],
        cwd=place.home.folder, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip


async def in_shell(place: Place, script: str, **values: str) -> Any:
    return await asyncio.to_thread(piped, place, script, **values)


async def test_key_in_a_variable_of_the_shell(place: Place) -> None:
    done = await in_shell(
        place,
        "KEY=$(tenantry keys create --name CI --scope projects:read --expires-in 1h)"
        " && TENANTRY_API_KEY=$KEY tenantry whoami",
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"may +projects:read\n", done.stdout)


async def test_pipe_that_ends_early_ends_the_list_without_a_word(place: Place) -> None:
    for number in range(4):
        await place.key("a:b", name=f"k{number}")
    for options in ("--json", ""):
        done = await in_shell(place, f"tenantry keys list {options} | head -1; echo ${{PIPESTATUS[0]}}")
        assert done.stdout.splitlines()[1:] == ["0"]
        assert done.stderr == ""


async def test_list_goes_over_all_pages_or_as_far_as_it_is_wanted(conninfo: str, home: Home) -> None:
    catalog = home.folder / "plans.toml"
    catalog.write_text('[[plans]]\nid = "free"\nname = "Free"\n')
    async with serving(conninfo, TENANTRY_PLANS=str(catalog)) as served:
        place = Place(served, await served.service.organization(), home)
        for number in range(MANY):
            await place.organization.owner.post("/api/v1/projects", {"name": f"p{number}"})
        whole = (await place.done("projects", "list", "--json")).splitlines()
        assert len(set(whole)) == MANY
        assert (await place.done("projects", "list", "--json", "--limit", "150")).splitlines() == whole[:150]
        table = (await place.done("projects", "list")).splitlines()
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
    assert "".join(line[38:].split("  ")[0].strip() for line in lines if "日" in line)


def cells(line: str) -> int:
    """The columns that a line takes: two for each of the wide characters here."""
    return sum(2 if "\u3000" < character < "\uff00" else 1 for character in line)


async def test_narrow_terminal_leaves_ids_whole(place: Place) -> None:
    key_id, _ = await place.key("a:b", name=LONG)
    shown = await on_terminal(place.home, place.values, "keys", "list", columns=40)
    assert key_id in shown.text


async def test_wide_terminal_shows_more(place: Place) -> None:
    await place.key("projects:read")
    assert "SCOPES" in (await on_terminal(place.home, place.values, "keys", "list", columns=160)).text
    assert "SCOPES" not in (await on_terminal(place.home, place.values, "keys", "list", columns=WIDTH)).text


async def test_long_name_goes_into_a_file_in_one_line(place: Place) -> None:
    await place.key("a:b", name=LONG)
    assert LONG in await place.done("keys", "list")


async def test_colours_are_for_terminals_alone(place: Place) -> None:
    assert "\x1b" not in await place.done("keys", "list")
    assert "\x1b[32m" in (await on_terminal(place.home, place.values, "keys", "list")).shown
    for values in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b[32m" not in (await on_terminal(place.home, {**place.values, **values}, "keys", "list")).shown
    assert "\x1b[32m" in await place.done("keys", "list", FORCE_COLOR="1")


async def test_text_of_others_commands_no_terminal(place: Place) -> None:
    await place.done("projects", "create", "--name", "a\x9b31mb")
    shown = await place.done("projects", "list")
    assert "a\N{REPLACEMENT CHARACTER}31mb" in shown


async def test_terminal_without_unicode_is_no_failure(place: Place) -> None:
    await place.done("projects", "create", "--name", "日本")
    for options in ([], ["--json"]):
        done = await place.run("projects", "list", *options, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert done.code == 0, done.err
