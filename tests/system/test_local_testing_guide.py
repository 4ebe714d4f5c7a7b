"""The commands of docs/how-to/local-testing.md, as they are printed there, beside a running
demo.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from tests.e2e.test_demo import demo
from tests.support.command_runner import invoke
from tests.support.commands import running
from tests.support.ports import free_port

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "local-testing.md"
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", _PAGE.read_text("utf-8"), re.DOTALL)
    for line in block.splitlines()
]
RELAYS = [command for command in COMMANDS if command.startswith("tenantry listen")]


def test_every_command_of_the_guide_works(place: Path) -> None:
    """The demo has an event loop in a thread: the commands handle signals, so they need the main
    thread.
    """
    port = str(free_port())
    assert len(COMMANDS) == 8
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(demo(place, int(port))),
    ):
        for command in COMMANDS:
            if command in RELAYS:
                continue
            if not command.startswith("tenantry "):
                assert in_shell(command, place) == 0
                continue
            done = invoke(*shlex.split(command)[1:], folder=place, PORT=port)
            assert (done.code, done.err) == (0, ""), (command, done)
        portal.call(relay, place, port)


async def relay(folder: Path, port: str) -> None:
    """Run the command that relays events until it is ready, and interrupt it."""
    [command] = RELAYS
    async with running(*shlex.split(command)[1:], folder=folder, PORT=port) as relay:
        await relay.until("signing with", "err")
        # what happens from now on: the relay has looked at the list before it says so
        assert await relay.end(signal.SIGINT) == 0


def in_shell(command: str, folder: Path) -> int:
    """The exit code of a line for a shell that knows our command."""
    folder_of_ours = folder / "bin"
    folder_of_ours.mkdir()
    ours = folder_of_ours / "tenantry"
    ours.write_text(f'#!/bin/sh\nexec {sys.executable} -m tenantry "$@"\n')
    ours.chmod(0o700)
    values = {
        **os.environ,
        "PATH": f"{folder_of_ours}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(folder / "state"),
    }
    checked = f'{command}\ncase "$PROVIDER_WEBHOOK_SECRET" in whsec_*) ;; *) exit 9 ;; esac'
    return subprocess.run(["sh", "-c", checked], cwd=folder, env=values, check=False).returncode
