"""Completion in the shells themselves."""

import asyncio
import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.cli.signing_in import Entrance
from tests.cli.support import Home, Place
from tests.support.findings import free_port
from tests.support.required import debian_program

# What each shell offers for the words of a line, the last of which is being typed; one a line, ids before descriptions.
BASH: Final = """
eval "$(tenantry completion bash)"
COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
_tenantry_completion tenantry
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH: Final = """
autoload -Uz compinit && compinit -u -D
eval "$(tenantry completion zsh)"
_describe() { local name; for name in "$@"; do [[ $name == completions* ]] && print -rl -- "${(@P)name}"; done }
compadd() { print -rl -- "${@[-1]}" }
words=("$@") CURRENT=$#
_tenantry_completion
"""
FISH: Final = """
tenantry completion fish | source
complete -C (string join -- ' ' $argv)
"""


def offered_by(shell: str, home: Home, words: tuple[str, ...], values: dict[str, str]) -> tuple[list[str], str]:
    program = debian_program(shell)
    command = {
        "bash": [program, "--norc", "-c", BASH, "bash"],
        "zsh": [program, "-f", "-c", ZSH, "zsh"],
        "fish": [program, "--no-config", "-c", FISH],
    }[shell]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*command, "tenantry", *words], cwd=home.folder, env={"PATH": path, "LANG": "C.UTF-8", **home.values, **values},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.splitlines(), done.stderr


async def offered(shell: str, home: Home, *words: str, **values: str) -> list[str]:
    """What the shell offers; it must write nothing else."""
    lines, errors = await asyncio.to_thread(offered_by, shell, home, words, values)
    assert errors == ""
    return [line.replace("\t", ":").split(":")[0] for line in lines if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_commands_options_and_ids_are_completed(place: Place, shell: str) -> None:
    key_id, _ = await place.key("a:b", name="CI für: alle")
    assert await offered(shell, place.home, "ke") == ["keys"]
    assert await offered(shell, place.home, "keys", "re") == ["revoke"]
    assert await offered(shell, place.home, "keys", "list", "--st") == ["--status"]
    assert await offered(shell, place.home, "keys", "show", key_id[:-3], **place.values) == [key_id]


async def test_ids_that_were_given_are_not_offered_again(place: Place) -> None:
    one, _ = await place.key("a:b")
    two, _ = await place.key("a:b")
    offers = await offered("bash", place.home, "keys", "revoke", one, "key_", **place.values)
    assert two in offers
    assert one not in offers


async def test_ids_are_of_the_service_that_the_line_names(place: Place) -> None:
    secret = place.values["TENANTRY_API_KEY"]
    project_id = (await place.done("projects", "create", "--name", "a")).strip()
    words = ("projects", "show", "--base-url", place.served.url, "proj_")
    assert await offered("bash", place.home, *words, TENANTRY_API_KEY=secret) == [project_id]


def typed_into_bash(home: Home, line: str, values: dict[str, str], until: str) -> str:
    """What an interactive bash shows once this line was typed, as far as ``until``."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=home.folder,
        env={"PATH": path, "LANG": "C.UTF-8", "TERM": "dumb", **home.values, **values}, start_new_session=True,
    ) as shell:  # fmt: skip
        os.close(theirs)
        shown = ""
        try:
            os.write(ours, b'eval "$(tenantry completion bash)"; printf %s- ready\n')
            for awaited, typed in (("ready-", line), (until, "")):
                while awaited not in shown and select.select([ours], [], [], 60)[0]:
                    shown += os.read(ours, 4096).decode()
                os.write(ours, typed.encode())
        finally:
            shell.kill()
            os.close(ours)
    return shown


async def test_address_on_the_line_does_not_confuse_bash(place: Place) -> None:
    secret = place.values["TENANTRY_API_KEY"]
    project_id = (await place.done("projects", "create", "--name", "a")).strip()
    line = f"tenantry projects show --base-url {place.served.url} proj\t"
    values = {"TENANTRY_API_KEY": secret}
    assert project_id in await asyncio.to_thread(typed_into_bash, place.home, line, values, project_id)


async def test_completion_waits_for_no_new_token(entrance: Entrance) -> None:
    assert (await entrance.sign_in()).code == 0
    entrance.expire()
    before = entrance.kept
    assert await offered("bash", entrance.home, "keys", "show", "key_") == []
    assert entrance.kept == before


async def test_files_are_completed_where_a_command_takes_files(home: Home) -> None:
    assert await offered("fish", home, "keys", "scan", "stat") == []
    (home.folder / "statement.txt").touch()
    assert await offered("fish", home, "keys", "scan", "stat") == ["statement.txt"]


async def test_nothing_is_said_where_ids_cannot_be_had(home: Home) -> None:
    home.configure("[profiles.broken]\nnonsense = 1\n")
    for values in ({}, {"TENANTRY_API_KEY": "svc_live_x", "TENANTRY_BASE_URL": f"http://127.0.0.1:{free_port()}"}):
        assert await offered("bash", home, "keys", "show", "key_", **values) == []
