"""Completion in bash, zsh and fish, set up with the line that the documentation gives for each."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tenantry.domain.billing.events import KNOWN_TYPES
from tests.cli.command_support import Home, Workspace
from tests.support.commands import AS_INSTALLED
from tests.support.required import debian_program

GUIDE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "command-line.md"
SET_UP: Final = {
    "bash": 'eval "$(tenantry completion bash)"',
    "zsh": 'eval "$(tenantry completion zsh)"',
    "fish": "tenantry completion fish | source",
}
# What each shell offers for the words of a line, the last of which is being typed; one a line, ids
# before descriptions.
SCRIPTS: Final = {
    "bash": """
SET_UP
complete -p tenantry >/dev/null || exit 1
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_tenantry_completion tenantry
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -Uz compinit && compinit -u -D
SET_UP
_describe() { local name; for name in "$@"; do [[ $name == completions* ]] && print -rl -- "${(@P)name}"; done }
compadd() { local name="${@[-1]}"; [[ " $* " == *" -a "* ]] && print -rl -- "${(@P)name}" || print -rl -- "$name" }
words=("$@") CURRENT=$#
_tenantry_completion
""",
    "fish": """
SET_UP
complete -C (string join -- ' ' $argv)
""",
}
SHELLS: Final = pytest.mark.parametrize("shell", SCRIPTS)


def offered_by(
    shell: str, home: Home, words: tuple[str, ...], values: dict[str, str]
) -> tuple[list[str], str]:
    program, script = debian_program(shell), SCRIPTS[shell].replace("SET_UP", SET_UP[shell])
    command = {
        "bash": [program, "--norc", "-c", script, "bash"],
        "zsh": [program, "-f", "-c", script, "zsh"],
        "fish": [program, "--no-config", "-c", script],
    }[shell]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {
        "PATH": path,
        "PYTHONPATH": AS_INSTALLED,
        "LANG": "C.UTF-8",
        **home.values,
        **values,
    }
    done = subprocess.run(
        [*command, "tenantry", *words],
        cwd=home.folder,
        env=variables,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines(), done.stderr


async def offered(shell: str, home: Home, *words: str, **values: str) -> list[str]:
    """Return what the shell offers; it must print nothing else."""
    lines, errors = await asyncio.to_thread(offered_by, shell, home, words, values)
    assert errors == ""
    return [line.replace("\t", ":").split(":")[0] for line in lines if line]


@pytest.mark.parametrize("shell", SET_UP)
async def test_line_is_documented(home: Home, shell: str) -> None:
    line = re.compile(rf"{re.escape(SET_UP[shell])} +(?:# )?in (?:~/|\$)")
    assert line.search(GUIDE.read_text())
    assert line.search((await home.run("completion", "--help")).out)


@SHELLS
async def test_commands_options_and_ids_are_completed(workspace: Workspace, shell: str) -> None:
    key_id, _ = await workspace.key("a:b", name="CI für: alle")
    assert await offered(shell, workspace.home, "ke") == ["keys"]
    assert await offered(shell, workspace.home, "keys", "re") == ["revoke"]
    assert await offered(shell, workspace.home, "keys", "list", "--st") == ["--status"]
    assert await offered(
        shell, workspace.home, "keys", "show", key_id[:-3], **workspace.values
    ) == [key_id]


async def test_files_are_completed_where_a_command_takes_files(home: Home) -> None:
    words = ("status", "--api-key-file", "sec")
    assert await offered("fish", home, *words) == []
    (home.folder / "secret.txt").touch()
    assert await offered("fish", home, *words) == ["secret.txt"]


@SHELLS
async def test_values_of_arguments_and_options_are_completed(home: Home, shell: str) -> None:
    home.configure('[profiles.staging]\nbase_url = "https://staging.example.com"\n')
    assert await offered(shell, home, "config", "set", "api_") == ["api_key_file"]
    assert await offered(shell, home, "status", "--profile", "st") == ["staging"]
    assert await offered(shell, home, "keys", "list", "--status", "rev") == ["revoked"]
    invoices = await offered(shell, home, "trigger", "invoice.")
    assert set(invoices) == {
        event_type for event_type in KNOWN_TYPES if event_type.startswith("invoice.")
    }
