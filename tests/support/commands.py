"""``tenantry`` as users run it: in separate processes."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

SECRETS: Final = {
    "PROVIDER_WEBHOOK_SECRET": "whsec_of_the_commands_0123456789",
    "API_KEY_PEPPER": "pepper-of-the-commands-0123456789abcdef",
    "SESSION_SECRET": "session-of-the-commands-0123456789abcdef",
}
_PATIENCE: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]
AS_INSTALLED: Final = f"{Path(__file__).parent / 'as_installed'}:{_ROOT}"
"""The module path of ``tenantry`` as users install it, and of the tests' own modules."""
_INHERITED_VARIABLES: Final = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "VIRTUAL_ENV",
    "COVERAGE_PROCESS_START",
    "COVERAGE_FILE",
)


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


class Running:
    """A command that goes on; what it writes on both streams is collected."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._changed = asyncio.Condition()
        self._readers = [
            asyncio.create_task(self._collect(stream, name))
            for name, stream in (("out", process.stdout), ("err", process.stderr))
            if stream is not None
        ]
        self.text = {"out": "", "err": ""}

    @property
    def pid(self) -> int:
        return self._process.pid

    def family(self) -> list[psutil.Process]:
        """The process and all that it has started."""
        own = psutil.Process(self.pid)
        return [own, *own.children(recursive=True)]

    async def until(self, text: str, stream: str, patience: float = _PATIENCE) -> None:
        """Return once this text was written; fail if the command ends without it, or after
        ``patience`` seconds.
        """
        await self.until_match(re.compile(re.escape(text)), stream, patience)

    async def until_match(
        self, pattern: re.Pattern[str], stream: str, patience: float = _PATIENCE
    ) -> None:
        """The same for what a pattern finds."""
        async with asyncio.timeout(patience), self._changed:
            await self._changed.wait_for(
                lambda: pattern.search(self.text[stream]) or self._has_ended()
            )
        assert pattern.search(self.text[stream]), f"it ended: {self.text}"

    async def end(self, how: signal.Signals) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.signal(how)
        return await self.wait()

    def signal(self, how: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(how)

    async def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        async with asyncio.timeout(_PATIENCE):
            await asyncio.gather(*self._readers)
            return await self._process.wait()

    def kill(self) -> None:
        """End it and all that it has started, if that is still there."""
        if self._process.returncode is not None:
            return
        with suppress(psutil.NoSuchProcess):  # it has just ended by itself
            for process in self.family():
                process.kill()

    def _has_ended(self) -> bool:
        return all(reader.done() for reader in self._readers)

    async def _collect(self, stream: asyncio.StreamReader, name: str) -> None:
        while chunk := await stream.read(4096):
            async with self._changed:
                self.text[name] += chunk.decode(errors="replace")
                self._changed.notify_all()
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._notify()))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def running(
    *arguments: str,
    folder: Path,
    module: str = "tenantry",
    python: str = sys.executable,
    **values: str,
) -> AsyncIterator[Running]:
    """``tenantry`` with these arguments, in this folder, with these environment variables and few
    others.

    ``module`` is another module to run; ``python`` is the interpreter of another environment.
    """
    async with _ended(
        Running(await _start(arguments, folder, values, module, python=python))
    ) as command:
        yield command


@asynccontextmanager
async def running_into(
    stdout: int, *arguments: str, folder: Path, **values: str
) -> AsyncIterator[Running]:
    """The same, with another stdout than ours."""
    async with _ended(
        Running(await _start(arguments, folder, values, "tenantry", stdout))
    ) as command:
        yield command


@asynccontextmanager
async def _ended(command: Running) -> AsyncIterator[Running]:
    try:
        yield command
    finally:
        command.kill()
        await command.wait()


async def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those of these processes that do not end, though they are given time."""
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, _PATIENCE / 2)
    return list(alive)


async def run(
    *arguments: str,
    folder: Path,
    module: str = "tenantry",
    python: str = sys.executable,
    **values: str,
) -> Done:
    """The same for a command that ends by itself."""
    process = await _start(arguments, folder, values, module, python=python)
    async with asyncio.timeout(_PATIENCE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def _start(
    arguments: tuple[str, ...],
    folder: Path,
    values: Mapping[str, str],
    module: str,
    stdout: int = asyncio.subprocess.PIPE,
    python: str = sys.executable,
) -> asyncio.subprocess.Process:
    environment = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    path = AS_INSTALLED if module == "tenantry" else str(_ROOT)
    fixed = {"PYTHONPATH": path, "XDG_STATE_HOME": str(folder / "state")}
    return await asyncio.create_subprocess_exec(
        python,
        "-m",
        module,
        *arguments,
        cwd=folder,
        env={**environment, **fixed, **values},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
    )
