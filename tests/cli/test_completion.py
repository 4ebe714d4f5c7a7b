"""Completion in the shells themselves."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.cli.support import Home, Place
from tests.support.findings import free_port

# What each shell offers for the words of a line, the last of which is being typed; one a line, ids before descriptions.
BASH: Final = """
eval "$(tenantry completion bash)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
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
    program = shutil.which(shell)
    if program is None:
        missing = f"{shell} is not installed; on Debian: apt-get install {shell}"
        if os.environ.get("TENANTRY_TESTS_REQUIRE_ALL") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
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


async def test_nothing_is_said_where_ids_cannot_be_had(home: Home) -> None:
    home.configure("[profiles.broken]\nnonsense = 1\n")
    for values in ({}, {"TENANTRY_API_KEY": "svc_live_x", "TENANTRY_BASE_URL": f"http://127.0.0.1:{free_port()}"}):
        assert await offered("bash", home, "keys", "show", "key_", **values) == []
