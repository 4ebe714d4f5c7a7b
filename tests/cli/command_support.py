"""Runs ``tenantry`` for tests with a separate home: in this process, as a process, and on a
terminal.
"""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tenantry_cli.client_configuration import WaitTimes
from tenantry_cli.demo_folder import ADDRESS, DEMO_FILE, LIVE_KEY
from tests.sdk.sdk_support import Served
from tests.support import command_runner
from tests.support.command_runner import QUICK, Command
from tests.support.commands import AS_INSTALLED, Done, Running, run, running
from tests.support.service import Organization

SECRET: Final = re.compile(r"svc_(?:live|test)_\w{49}")
ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PATIENCE: Final = 60
DEMO_KEY: Final = "svc_live_" + "0" * 49
CTRL_C: Final = "\x03"
_QUESTION: Final = b"[y/N]"
_ON_TERMINAL: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, '-m', 'tenantry', *sys.argv[1:]])"
)
"""Makes the terminal the controlling one, so that Ctrl-C is a signal."""


class Home(NamedTuple):
    """An empty home folder."""

    folder: Path

    @property
    def values(self) -> dict[str, str]:
        """The variables that name the folder."""
        return {
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "TENANTRY_DATA_DIR": str(self.folder / ".tenantry"),
        }

    @property
    def token_folder(self) -> Path:
        """The folder of the stored sign-ins, one folder a profile."""
        return self.folder / "state" / "tenantry"

    def configure(self, text: str) -> None:
        """Write the configuration file."""
        path = self.folder / "config" / "tenantry" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def run(self, *arguments: str, **values: str) -> Done:
        """Run a command in this process; ``values`` are further variables."""
        return await self.run_with(QUICK, *arguments, **values)

    async def run_with(self, waits: WaitTimes, *arguments: str, **values: str) -> Done:
        """Run a command with these wait times instead of short ones."""
        values = {**self.values, **values}
        async with command_runner.running(
            *arguments, folder=self.folder, waits=waits, **values
        ) as command:
            return await command.done()

    async def at_terminal(self, typed: str, *arguments: str, **values: str) -> Done:
        """Run a command on what it takes for a terminal of 80 columns, with this input."""
        values = {"TERM": "xterm-256color", "COLUMNS": "80", **self.values, **values}
        return await command_runner.invoke_async(
            *arguments, folder=self.folder, typed=typed, **values
        )

    def running(self, *arguments: str, **values: str) -> AbstractAsyncContextManager[Command]:
        """Start a command in this process."""
        return command_runner.running(
            *arguments, folder=self.folder, waits=QUICK, **{**self.values, **values}
        )

    async def run_process(self, *arguments: str, **values: str) -> Done:
        """Run a command as a process."""
        return await run(*arguments, folder=self.folder, **{**self.values, **values})

    def running_process(
        self, *arguments: str, **values: str
    ) -> AbstractAsyncContextManager[Running]:
        """Start a command as a process."""
        return running(*arguments, folder=self.folder, **{**self.values, **values})


def create_demo(home: Home, address: str, key: str = DEMO_KEY, **more: str) -> None:
    """Create the files of a demo."""
    folder = home.folder / ".tenantry"
    folder.mkdir()
    lines = [
        f"{name}={value}\n" for name, value in {ADDRESS: address, LIVE_KEY: key, **more}.items()
    ]
    (folder / DEMO_FILE).write_text("".join(lines))


class Workspace(NamedTuple):
    """An organization of the running service, and a home where its OWNER key is set."""

    served: Served
    organization: Organization
    home: Home

    @property
    def values(self) -> dict[str, str]:
        """The variables that name the service and the key."""
        return {
            "TENANTRY_BASE_URL": self.served.url,
            "TENANTRY_API_KEY": str(self.organization.owner.credential),
        }

    async def run(self, *arguments: str, **values: str) -> Done:
        """Run a command with that key, unless ``values`` name another."""
        return await self.home.run(*arguments, **{**self.values, **values})

    async def at_terminal(self, typed: str, *arguments: str, **values: str) -> Done:
        """Run a command on a terminal: see `Home.at_terminal`."""
        return await self.home.at_terminal(typed, *arguments, **{**self.values, **values})

    async def done(self, *arguments: str, **values: str) -> str:
        """Run a command that must succeed, and return its stdout."""
        ended = await self.run(*arguments, **values)
        assert ended.code == 0, ended
        return ended.out

    async def key(self, *scopes: str, **fields: Any) -> tuple[str, str]:
        """Create a key; return its id and secret."""
        made = await self.served.service.key(
            self.organization.owner, self.organization.id, *scopes, **fields
        )
        return made.id, str(made.caller.credential)


def _piped(workspace: Workspace, script: str, **values: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in which ``tenantry`` is the command."""
    environment = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "PYTHONPATH": AS_INSTALLED,
        **workspace.home.values,
        **workspace.values,
        **values,
    }
    return subprocess.run(
        ["bash", "-c", f'tenantry() {{ {sys.executable} -m tenantry "$@"; }}; {script}'],
        cwd=workspace.home.folder,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


async def in_shell(
    workspace: Workspace, script: str, **values: str
) -> "subprocess.CompletedProcess[str]":
    """A script of bash in which ``tenantry`` is the command, with the organization's OWNER key."""
    return await asyncio.to_thread(_piped, workspace, script, **values)


class Terminal(NamedTuple):
    """What a command on a terminal came to: its exit code, what the terminal showed, and its stdout
    where apart.
    """

    code: int
    shown: str
    out: str

    @property
    def text(self) -> str:
        """What was shown, without colours."""
        return ANSI.sub("", self.shown).replace("\r\n", "\n")


async def on_terminal(
    home: Home,
    values: Mapping[str, str],
    *arguments: str,
    answer: str = "",
    columns: int = 80,
    captured: bool = False,
) -> Terminal:
    """A command with these variables on a pseudo-terminal of this width, at which ``answer`` is
    typed.

    ``captured`` is as in ``KEY=$(...)``: stdout is a pipe, and the rest is the terminal.
    """
    return await asyncio.to_thread(_on_terminal, home, arguments, answer, columns, captured, values)


def _on_terminal(
    home: Home,
    arguments: tuple[str, ...],
    answer: str,
    columns: int,
    captured: bool,
    values: Mapping[str, str],
) -> Terminal:
    environment = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PYTHONPATH": AS_INSTALLED,
    }
    with _terminal(columns) as (ours, theirs):
        process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *arguments],
            cwd=home.folder,
            env={**environment, **home.values, **values},
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE if captured else theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            shown = _conversation(ours, answer)
            out, _ = process.communicate(timeout=_PATIENCE)
        finally:
            process.kill()
        return Terminal(process.returncode, shown, (out or b"").decode())


def _conversation(terminal: int, answer: str) -> str:
    """Return what the terminal shows until the command ends; types the answer once the question is
    there.

    Ctrl-C is pressed until the command says something: one that comes just before the command reads
    waits for the next key, and one that comes later would interrupt its end.
    """
    shown, asked_at, presses = bytearray(), 0, _PATIENCE * 2
    with contextlib.suppress(OSError):  # a terminal ends with an error
        while presses:
            silent = not select.select([terminal], [], [], 0.5)[0]
            if silent:
                presses -= 1
            else:
                shown += os.read(terminal, 4096)
            if not answer or _QUESTION not in shown:
                continue
            is_heard = bool(shown[asked_at:].replace(b"^C", b""))
            if not asked_at or (silent and answer == CTRL_C and not is_heard):
                os.write(terminal, answer.encode())
                asked_at = asked_at or len(shown)
    return shown.decode()


@contextlib.contextmanager
def _terminal(columns: int) -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)
