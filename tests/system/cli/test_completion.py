"""Completion in zsh and fish. `tests/cli` tests bash."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.cli.support import Home, Workspace
from tests.support.required import debian_program

# What each shell offers for the words of a line, the last of which is being typed; one a line, ids before descriptions.
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
    command = {"zsh": [program, "-f", "-c", ZSH, "zsh"], "fish": [program, "--no-config", "-c", FISH]}[shell]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*command, "tenantry", *words], cwd=home.folder, env={"PATH": path, "LANG": "C.UTF-8", **home.values, **values},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.splitlines(), done.stderr


async def offered(shell: str, home: Home, *words: str, **values: str) -> list[str]:
    """Return what the shell offers; it must print nothing else."""
    lines, errors = await asyncio.to_thread(offered_by, shell, home, words, values)
    assert errors == ""
    return [line.replace("\t", ":").split(":")[0] for line in lines if line]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
async def test_commands_options_and_ids_are_completed(workspace: Workspace, shell: str) -> None:
    key_id, _ = await workspace.key("a:b", name="CI für: alle")
    assert await offered(shell, workspace.home, "ke") == ["keys"]
    assert await offered(shell, workspace.home, "keys", "re") == ["revoke"]
    assert await offered(shell, workspace.home, "keys", "list", "--st") == ["--status"]
    assert await offered(shell, workspace.home, "keys", "show", key_id[:-3], **workspace.values) == [key_id]


async def test_files_are_completed_where_a_command_takes_files(home: Home) -> None:
    assert await offered("fish", home, "keys", "scan", "stat") == []
    (home.folder / "statement.txt").touch()
    assert await offered("fish", home, "keys", "scan", "stat") == ["statement.txt"]
