"""What tests of the commands share: ``tenantry`` with a home of its own, in this process, in another, on a terminal."""

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

from tenantry.cli.api_client import WaitTimes
from tenantry.cli.demo_folder import ADDRESS, DEMO_FILE, LIVE_KEY
from tests.sdk.support import Served
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
    """A folder that is home, with nothing of the one who runs the tests."""

    folder: Path

    @property
    def values(self) -> dict[str, str]:
        """The variables that make it so."""
        return {
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "TENANTRY_DATA_DIR": str(self.folder / ".tenantry"),
        }

    @property
    def kept(self) -> Path:
        """Where sign-ins are kept, a folder a profile."""
        return self.folder / "state" / "tenantry"

    def configure(self, text: str) -> None:
        """Write the configuration file."""
        path = self.folder / "config" / "tenantry" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def run(self, *arguments: str, **values: str) -> Done:
        """A command in this process; ``values`` are further variables."""
        return await self.run_with(QUICK, *arguments, **values)

    async def run_with(self, waits: WaitTimes, *arguments: str, **values: str) -> Done:
        """The same, with other waits than short ones."""
        values = {**self.values, **values}
        async with command_runner.running(*arguments, folder=self.folder, waits=waits, **values) as command:
            return await command.done()

    async def at_terminal(self, typed: str, *arguments: str, **values: str) -> Done:
        """The same for a command that takes its streams for a terminal of 80 columns, at which somebody types this."""
        values = {"TERM": "xterm-256color", "COLUMNS": "80", **self.values, **values}
        return await command_runner.invoke_async(*arguments, folder=self.folder, typed=typed, **values)

    def running(self, *arguments: str, **values: str) -> AbstractAsyncContextManager[Command]:
        """The same for a command that goes on while the test does something."""
        return command_runner.running(*arguments, folder=self.folder, waits=QUICK, **{**self.values, **values})

    async def run_process(self, *arguments: str, **values: str) -> Done:
        """A command that ends by itself, as a process of its own."""
        return await run(*arguments, folder=self.folder, **{**self.values, **values})

    def running_process(self, *arguments: str, **values: str) -> AbstractAsyncContextManager[Running]:
        """A command that goes on, as a process of its own."""
        return running(*arguments, folder=self.folder, **{**self.values, **values})


def made_demo(home: Home, address: str, key: str = DEMO_KEY, **more: str) -> None:
    """Leave what a demo leaves in its folder."""
    folder = home.folder / ".tenantry"
    folder.mkdir()
    lines = [f"{name}={value}\n" for name, value in {ADDRESS: address, LIVE_KEY: key, **more}.items()]
    (folder / DEMO_FILE).write_text("".join(lines))


class Place(NamedTuple):
    """An organization of the running service, and a home where its OWNER key is set."""

    served: Served
    organization: Organization
    home: Home

    @property
    def values(self) -> dict[str, str]:
        """The variables that name the service and the key."""
        return {"TENANTRY_BASE_URL": self.served.url, "TENANTRY_API_KEY": str(self.organization.owner.credential)}

    async def run(self, *arguments: str, **values: str) -> Done:
        """A command with that key, unless ``values`` say otherwise."""
        return await self.home.run(*arguments, **{**self.values, **values})

    async def at_terminal(self, typed: str, *arguments: str, **values: str) -> Done:
        """The same at what it takes for a terminal: see `Home.at_terminal`."""
        return await self.home.at_terminal(typed, *arguments, **{**self.values, **values})

    async def done(self, *arguments: str, **values: str) -> str:
        """What such a command writes on stdout; it has to succeed."""
        ended = await self.run(*arguments, **values)
        assert ended.code == 0, ended
        return ended.out

    async def key(self, *scopes: str, **fields: Any) -> tuple[str, str]:
        """Id and secret of a new key."""
        made = await self.served.service.key(self.organization.owner, self.organization.id, *scopes, **fields)
        return made.id, str(made.caller.credential)


def _piped(place: Place, script: str, **values: str) -> subprocess.CompletedProcess[str]:
    """A script of the shell in which ``tenantry`` is the command."""
    environment = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "PYTHONPATH": AS_INSTALLED,
        **place.home.values,
        **place.values,
        **values,
    }
    return subprocess.run(
        ["bash", "-c", f"tenantry() {{ {sys.executable} -m tenantry \"$@\"; }}; {script}"],
        cwd=place.home.folder, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip


async def in_shell(place: Place, script: str, **values: str) -> "subprocess.CompletedProcess[str]":
    """A script of bash in which ``tenantry`` is the command, with the organization's OWNER key."""
    return await asyncio.to_thread(_piped, place, script, **values)


class Terminal(NamedTuple):
    """What a command on a terminal came to: its exit code, what the terminal showed, and its stdout where apart."""

    code: int
    shown: str
    out: str

    @property
    def text(self) -> str:
        """What was shown, without colours."""
        return ANSI.sub("", self.shown).replace("\r\n", "\n")


async def on_terminal(
    home: Home, values: Mapping[str, str], *arguments: str, answer: str = "", columns: int = 80, captured: bool = False
) -> Terminal:
    """A command with these variables on a pseudo-terminal of this width, at which ``answer`` is typed.

    ``captured`` is as in ``KEY=$(...)``: stdout is a pipe, and the rest is the terminal.
    """
    return await asyncio.to_thread(_on_terminal, home, arguments, answer, columns, captured, values)


def _on_terminal(
    home: Home, arguments: tuple[str, ...], answer: str, columns: int, captured: bool, values: Mapping[str, str]
) -> Terminal:
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TERM": "xterm-256color", "PYTHONPATH": AS_INSTALLED}
    with _terminal(columns) as (ours, theirs):
        process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *arguments],
            cwd=home.folder, env={**environment, **home.values, **values}, stdin=theirs, stderr=theirs,
            stdout=subprocess.PIPE if captured else theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        try:
            shown = _conversation(ours, answer)
            out, _ = process.communicate(timeout=_PATIENCE)
        finally:
            process.kill()
        return Terminal(process.returncode, shown, (out or b"").decode())


def _conversation(terminal: int, answer: str) -> str:
    """All that the terminal shows until the command is gone; the answer is typed once the question is there.

    Ctrl-C is pressed until it is heard: one that comes just before the command reads waits for the next key.
    """
    shown, asked, presses = bytearray(), False, _PATIENCE * 2
    with contextlib.suppress(OSError):  # that is how a terminal ends
        while presses:
            silent = not select.select([terminal], [], [], 0.5)[0]
            if silent:
                presses -= 1
            else:
                shown += os.read(terminal, 4096)
            if answer and _QUESTION in shown and (not asked or (silent and answer == CTRL_C)):
                os.write(terminal, answer.encode())
                asked = True
    return shown.decode()


@contextlib.contextmanager
def _terminal(columns: int) -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)
