"""Completion: what is offered for a line, and in bash itself. Other shells are in `tests/system/cli`."""

import asyncio
import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import Final

import psycopg

from tests.cli.signing_in import Entrance
from tests.cli.support import Home, Place
from tests.support.commands import AS_INSTALLED
from tests.support.findings import free_port

# What bash offers for the words of a line, the last of which is being typed, a line each.
BASH: Final = """
source completion.bash
COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
_tenantry_completion tenantry
printf '%s\\n' "${COMPREPLY[@]}"
"""


async def offered(home: Home, *words: str, **values: str) -> list[str]:
    """What the command offers for the last of these words, as bash asks it; it must write nothing else."""
    line = " ".join(("tenantry", *words))
    done = await home.run(_TENANTRY_COMPLETE="bash_complete", COMP_WORDS=line, **values)
    assert (done.code, done.err) == (0, "")
    return [offer.partition(",")[2] for offer in done.out.splitlines() if offer]


async def environment(home: Home, values: dict[str, str]) -> dict[str, str]:
    """The variables of a bash that finds ``tenantry``, in a folder with the script that completes it."""
    script = await home.run("completion", "bash")
    (home.folder / "completion.bash").write_text(script.out)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": AS_INSTALLED, "LANG": "C.UTF-8", **home.values, **values}


async def test_commands_options_and_ids_are_completed(place: Place) -> None:
    key_id, _ = await place.key("a:b", name="CI für: alle")
    assert await offered(place.home, "ke") == ["keys"]
    assert await offered(place.home, "keys", "re") == ["revoke"]
    assert await offered(place.home, "keys", "list", "--st") == ["--status"]
    assert await offered(place.home, "keys", "show", key_id[:-3], **place.values) == [key_id]


async def test_names_of_older_objects_cannot_command_the_terminal(place: Place) -> None:
    key_id, _ = await place.key("a:b")
    with psycopg.connect(place.served.service.conninfo) as connection:
        connection.execute("UPDATE api_keys SET name = %s WHERE id = %s", ("a\x1b[31m\nb\u202ec", key_id))
    line = f"tenantry keys show {key_id}"
    done = await place.run(_TENANTRY_COMPLETE="zsh_complete", COMP_WORDS=line, COMP_CWORD="3")
    assert done.out.splitlines() == ["plain", key_id, "a\ufffd[31m\ufffdb\ufffdc"]


async def test_bash_completes_commands_and_ids(place: Place) -> None:
    key_id, _ = await place.key("a:b", name="CI für: alle")
    variables = await environment(place.home, place.values)
    for words, expected in ((["keys", "re"], "revoke"), (["keys", "show", key_id[:-3]], key_id)):
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "--norc", "-c", BASH, "bash", "tenantry", *words], cwd=place.home.folder, env=variables,
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (f"{expected}\n", "")


async def test_ids_that_were_given_are_not_offered_again(place: Place) -> None:
    one, _ = await place.key("a:b")
    two, _ = await place.key("a:b")
    offers = await offered(place.home, "keys", "revoke", one, "key_", **place.values)
    assert two in offers
    assert one not in offers


async def test_ids_are_of_the_service_that_the_line_names(place: Place) -> None:
    secret = place.values["TENANTRY_API_KEY"]
    project_id = (await place.done("projects", "create", "--name", "a")).strip()
    words = ("projects", "show", "--base-url", place.served.url, "proj_")
    assert await offered(place.home, *words, TENANTRY_API_KEY=secret) == [project_id]


def typed_into_bash(home: Home, line: str, variables: dict[str, str], until: str) -> str:
    """What an interactive bash shows once this line was typed, as far as ``until``."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=home.folder,
        env={"TERM": "dumb", **variables}, start_new_session=True,
    ) as shell:  # fmt: skip
        os.close(theirs)
        shown = ""
        try:
            os.write(ours, b"source completion.bash; printf %s- ready\n")
            for awaited, typed in (("ready-", line), (until, "")):
                while awaited not in shown and select.select([ours], [], [], 60)[0]:
                    shown += os.read(ours, 4096).decode()
                os.write(ours, typed.encode())
        finally:
            shell.kill()
            os.close(ours)
    return shown


async def test_address_on_the_line_does_not_confuse_bash(place: Place) -> None:
    variables = await environment(place.home, {"TENANTRY_API_KEY": place.values["TENANTRY_API_KEY"]})
    project_id = (await place.done("projects", "create", "--name", "a")).strip()
    line = f"tenantry projects show --base-url {place.served.url} proj\t"
    assert project_id in await asyncio.to_thread(typed_into_bash, place.home, line, variables, project_id)


async def test_completion_waits_for_no_new_token(entrance: Entrance) -> None:
    assert (await entrance.sign_in()).code == 0
    entrance.expire()
    before = entrance.kept
    assert await offered(entrance.home, "keys", "show", "key_nobody") == []
    assert entrance.kept == before


async def test_nothing_is_said_where_ids_cannot_be_had(home: Home) -> None:
    home.configure("[profiles.broken]\nnonsense = 1\n")
    for values in ({}, {"TENANTRY_API_KEY": "svc_live_x", "TENANTRY_BASE_URL": f"http://127.0.0.1:{free_port()}"}):
        assert await offered(home, "keys", "show", "key_", **values) == []
