"""The code blocks of a documentation page, and terminals that run them as a reader does.

A block is one of

- ``sh``: commands, which the terminal runs in the page's order, all in one shell that starts in an
  empty folder;
- ``sh`` after ``<!-- keeps running -->``: a command that keeps running, in a separate terminal; the
  output below it says when it is ready;
- a block with ``title="app.py"``: a file of that name;
- ``text``, ``json`` or ``http`` directly below commands: their whole output, where ``...`` is any
  text, and ids, times and durations are examples;
- any block after ``<!-- excerpt: why -->``: not run, nor compared what is directly below it.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.commands import AS_INSTALLED, Running
from tests.support.ports import free_port

ROOT: Final = Path(__file__).parents[2]
_BLOCK: Final = re.compile(
    r"(?:^ *<!-- (?P<note>[^\n]+) -->\n+)?^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_TITLE: Final = re.compile(r'title="([^"]+)"')
_OUTPUTS: Final = frozenset({"text", "json", "http"})
_EXAMPLES: Final = (
    (r"\.\.\.", r".*?"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"),
    (r"\d{4}-\d\d-\d\d", r"\d{4}-\d\d-\d\d"),
    (r"\d+ ms", r"\d+ ms"),
    (r"[a-z]+_(?:live_|test_|by_hand_)?[0-9A-Za-z]{10,}", r"[a-z]+_\\w+"),
    (r"svc_(?:live|test)_\w+", r"svc_\\w+"),
    (r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", r"[0-9a-f]+"),
    (r"\s+", r"\s*"),
)
"""What an output shows as an example, and what it may be instead."""
_PORTS: Final = ("3001", "8000")
"""The ports in the pages: the demo's and an application's. Tests use others."""
_PATIENCE: Final = 300.0
"""Seconds for a block: some download and install packages."""


class Kind(Enum):
    """What a test does with a block."""

    COMMANDS = auto()
    SERVER = auto()
    FILE = auto()
    OUTPUT = auto()
    EXCERPT = auto()
    UNMARKED = auto()


class Block(NamedTuple):
    """A fenced code block, the line it begins in, the name of its file, and the comment above
    it.
    """

    kind: Kind
    text: str
    line: int
    name: str = ""
    note: str = ""


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in its order."""
    content = page.read_text("utf-8")
    found: list[Block] = []
    end = -1
    for match in _BLOCK.finditer(content):
        follows = bool(found) and not content[end : match.start()].strip()
        end = match.end()
        text = "".join(
            line.removeprefix(match["indent"]) for line in match["text"].splitlines(keepends=True)
        )
        title = _TITLE.search(match["info"])
        note = match["note"] or ""
        kind = _kind(match["info"], note, found[-1].kind if follows else None)
        line = content.count("\n", 0, match.start()) + 1
        found.append(Block(kind, text, line, title[1] if title else "", note))
    return found


def block_of(page: str, start: str) -> str:
    """The only block of a page below docs that begins so."""
    [text] = [block.text for block in blocks(ROOT / "docs" / page) if block.text.startswith(start)]
    return text


def sections_of(page: Path, *headings: str) -> str:
    """The sections of a page below these headings of the second level, in the page's order."""
    parts = re.split(r"^(?=## )", page.read_text("utf-8"), flags=re.MULTILINE)
    found = [part for part in parts if part.partition("\n")[0].removeprefix("## ") in headings]
    assert len(found) == len(headings), f"{page.name} lacks one of {headings}"
    return "".join(found)


def with_next(found: list[Block]) -> Iterator[tuple[Block, Block | None]]:
    """Each block with the one below it."""
    return zip(found, [*found[1:], None], strict=False)


def _kind(info: str, note: str, above: Kind | None) -> Kind:
    language = info.partition(" ")[0]
    if note.startswith("excerpt: "):
        return Kind.EXCERPT
    if _TITLE.search(info):
        return Kind.FILE
    if language == "sh":
        return Kind.SERVER if note == "keeps running" else Kind.COMMANDS
    if language in _OUTPUTS and above in (Kind.COMMANDS, Kind.SERVER, Kind.EXCERPT):
        return Kind.EXCERPT if above is Kind.EXCERPT else Kind.OUTPUT
    return Kind.UNMARKED


def expected(output: str) -> re.Pattern[str]:
    """What matches the output that a page shows."""
    parts = re.split("(" + "|".join(shown for shown, _ in _EXAMPLES) + ")", output.strip())
    return re.compile(r"\s*" + "".join(map(_pattern, parts)) + r"\s*", re.DOTALL)


def _pattern(part: str) -> str:
    return next(
        (actual.replace("\\\\", "\\") for shown, actual in _EXAMPLES if re.fullmatch(shown, part)),
        re.escape(part),
    )


class BlockError(AssertionError):
    """A block does not do what its page says."""


class Reader:
    """Follows a page in an empty folder, with its own home folder and ports."""

    def __init__(
        self, stack: AsyncExitStack, folder: Path, home: Path, values: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self._stack = stack
        self._ports = {shown: str(free_port()) for shown in _PORTS}
        self._ports |= {"3001": values["PORT"]} if "PORT" in values else {}
        self._values = {**_environment(home), **values, "PORT": self._ports["3001"]}
        self._terminal: Terminal | None = None

    def address(self, shown: str) -> str:
        """Where a server runs that the pages show on this port."""
        return f"http://127.0.0.1:{self._ports[shown]}"

    async def follow(self, page: Path) -> None:
        """Do what a page says. Raises `BlockError`."""
        for block, below in with_next(blocks(page)):
            output = (
                expected(self._own(below.text)) if below and below.kind is Kind.OUTPUT else None
            )
            try:
                await self._do(block, output)
            except AssertionError as error:
                raise BlockError(f"{page.name}:{block.line}: {error}") from None

    async def _do(self, block: Block, output: re.Pattern[str] | None) -> None:
        text = self._own(block.text)
        match block.kind:
            case Kind.FILE:
                file = self.folder / block.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, "utf-8")
            case Kind.COMMANDS:
                if self._terminal is None:
                    self._terminal = await self._open()
                shown = await self._terminal.run(text)
                if output is not None and not output.fullmatch(shown):
                    raise AssertionError(f"the output is not the one below the block:\n{shown}")
            case Kind.SERVER:
                if output is None:
                    raise AssertionError("no output below the block says that it is ready")
                terminal = await self._open()
                await terminal.serve(text, output)
            case Kind.UNMARKED:
                raise AssertionError("is neither run nor marked as an excerpt")
            case Kind.OUTPUT | Kind.EXCERPT:
                pass

    def _own(self, text: str) -> str:
        return re.sub(rf"\b(?:{'|'.join(_PORTS)})\b", lambda match: self._ports[match[0]], text)

    async def _open(self) -> "Terminal":
        return await self._stack.enter_async_context(_terminal(self.folder, self._values))


class Terminal:
    """A shell; what it shows is collected."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        self._input = process.stdin
        self._running = Running(process)
        self._count = 0

    async def run(self, script: str) -> str:
        """Run commands, and return what they show. A command that fails ends it."""
        self._count += 1
        before, mark = len(self._running.text["out"]), f"--- end of block {self._count} ---"
        await self._type(script, f"printf '%s' '{mark}'\n")
        try:
            await self._running.until(mark, "out", _PATIENCE)
        except (AssertionError, TimeoutError) as error:
            shown = self._running.text["out"][before:]
            raise AssertionError(
                f"a command failed or did not end ({type(error).__name__}), after\n{shown}"
            ) from None
        return self._running.text["out"][before:].partition(mark)[0]

    async def serve(self, script: str, ready: re.Pattern[str]) -> None:
        """Run a command that goes on, until it has shown this."""
        await self._type(script, "exit\n")
        await self._running.until_match(ready, "out")

    async def close(self) -> None:
        """Interrupt what runs, as Ctrl-C does, and end it if that does not help."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGINT)
        self._input.close()
        try:
            await self._running.wait()
        finally:
            self._running.kill()

    async def _type(self, script: str, then: str) -> None:
        # the commands do not read what is typed after them
        self._input.write(f"{{\n{script}\n}} </dev/null\n{then}".encode())
        await self._input.drain()


@asynccontextmanager
async def _terminal(folder: Path, values: Mapping[str, str]) -> AsyncIterator[Terminal]:
    process = await asyncio.create_subprocess_exec(
        "bash",
        "--noprofile",
        "--norc",
        "-e",
        cwd=folder,
        env=values,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    terminal = Terminal(process)
    try:
        yield terminal
    finally:
        await terminal.close()


def _environment(home: Path) -> dict[str, str]:
    """The environment of a user in whose environment the distributions are installed."""
    programs = home / "bin"
    programs.mkdir()
    command = programs / "tenantry"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tenantry "$@"\n')
    command.chmod(0o700)
    sources = (ROOT / "src", ROOT / "sdk" / "src", ROOT / "devkit" / "src")
    inherited = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join([AS_INSTALLED, *map(str, sources)]),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(home),
        # what goes to loopback goes past whatever proxy the environment names
        "NO_PROXY": "127.0.0.1,localhost",
    }


@asynccontextmanager
async def reader(folder: Path, home: Path, **values: str) -> AsyncIterator[Reader]:
    """A reader with two empty folders, and these environment variables too; what still runs at the
    end is ended.
    """
    async with AsyncExitStack() as stack:
        yield Reader(stack, folder, home, values)
