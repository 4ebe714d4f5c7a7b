"""``tenantry keys scan``: find API keys in files, folders and standard input."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Final

import click
import msgspec

from tenantry.cli.options import json_option
from tenantry.cli.output import counted, printable, say
from tenantry.domain.api_keys import is_any_key, shown_parts

_ALLOW_REACH: Final = 4096  # bytes before and after the start of a key
_LONGEST_PREFIX: Final = 32  # bytes: 16 characters in UTF-16
_MODES: Final = (b"_live_", b"_test_", b"_\0l\0i\0v\0e\0_", b"_\0t\0e\0s\0t\0_")
# What follows the prefix of a key. UTF-16 has a zero byte between two characters. The lookahead
# finds a key that begins inside a lookalike.
_FORM: Final = re.compile(rb"_\0?(?:l\0?i\0?v\0?e|t\0?e\0?s\0?t)\0?_(?=((?:\0?[0-9A-Za-z]){49}))")
# Each beginning of a prefix that ends here, the longest first: other text may stand before a key.
_PREFIX: Final = re.compile(rb"(?=((?:[0-9a-z]\0?){2,16})\Z)")
_ADVICE: Final = """\
Each has a valid checksum: it is or was a key. Report it to revoke it at once and to notify its owner:
  curl -H 'Content-Type: application/json' --data @- BASE_URL/api/v1/api-keys/report-leak
and type {"secret": "the whole key"}, Return and Ctrl-D. Then remove it from the file and from the history.
If it belongs there, such as a test vector, write tenantry:allow on the same line."""


class KeyPlace(msgspec.Struct):
    """Where a key is. Lines and columns (in bytes) count from 1."""

    path: str
    line: int
    column: int
    start: str
    last4: str


class UnreadableFile(msgspec.Struct):
    """A file or folder that cannot be read."""

    path: str
    reason: str


class ScanReport(msgspec.Struct):
    """The keys that were found, and how much was searched."""

    keys: list[KeyPlace] = []
    unreadable: list[UnreadableFile] = []
    files: int = 0
    bytes: int = 0

    def add_error(self, error: OSError) -> None:
        self.unreadable.append(UnreadableFile(printable(error.filename), error.strerror or ""))


def scan_stream(file: IO[bytes], path: str, report: ScanReport) -> None:
    """Add every key with a valid checksum."""
    line = 1
    report.files += 1
    while block := file.read(1024 * 1024) + file.readline():  # whole lines: no key is cut in two
        line_start = counted_to = 0
        for offset, secret in _keys_in(block):
            line += block.count(b"\n", counted_to, offset)
            line_start = max(line_start, block.rfind(b"\n", counted_to, offset) + 1)
            counted_to = offset
            if not _is_allowed(block, line_start, offset):
                column = offset - line_start + 1
                shown = shown_parts(secret.decode())
                report.keys.append(
                    KeyPlace(
                        printable(path),
                        line,
                        column,
                        *shown,
                    )
                )
        line += block.count(b"\n", counted_to)
        report.bytes += len(block)


def _keys_in(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each key with a valid checksum, whatever its prefix, and where it begins."""
    if not any(mode in block for mode in _MODES):  # quick, mostly no
        return
    for found in _FORM.finditer(block):
        begin = max(0, found.start() - _LONGEST_PREFIX)
        for prefix in _PREFIX.finditer(block[begin : found.start()]):
            secret = (prefix[1] + found[0] + found[1]).replace(b"\0", b"")
            if is_any_key(secret):
                yield begin + prefix.start(), secret
                break


def _is_allowed(block: bytes, line_start: int, offset: int) -> bool:
    begin = max(line_start, offset - _ALLOW_REACH)
    nearby = block[begin : offset + _ALLOW_REACH].partition(b"\n")[0]
    return b"tenantry:allow" in nearby.replace(b"\0", b"")


def list_files(
    path: str,
    globs: tuple[str, ...],
    on_error: Callable[[OSError], None],
) -> Iterator[str]:
    """List the regular files below a folder, in order; any other path is listed as it is."""
    if not Path(path).is_dir():
        if not _is_excluded(os.path.normpath(path), globs):
            yield path
        return
    for folder, folders, names in os.walk(path, onerror=on_error):
        prefix = folder.rstrip("/") + "/"
        below = prefix.removeprefix(path).lstrip("/")
        folders[:] = sorted(_included(set(folders) - {".git"}, below, globs))
        files = (Path(prefix + name) for name in sorted(_included(names, below, globs)))
        yield from (prefix + file.name for file in files if _is_regular(file))


def _included(names: Iterable[str], below: str, globs: tuple[str, ...]) -> Iterator[str]:
    return (name for name in names if not _is_excluded(below + name, globs))


def _is_regular(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def _is_excluded(path: str, globs: tuple[str, ...]) -> bool:
    name = path.rpartition("/")[2]
    return any(
        fnmatchcase(path if "/" in glob.rstrip("/") else name, glob.strip("/")) for glob in globs
    )


@click.command("scan")
@click.argument(
    "paths",
    metavar="PATH...",
    nargs=-1,
    required=True,
    type=click.Path(),
)
@click.option(
    "--exclude",
    "globs",
    metavar="GLOB",
    multiple=True,
    help="Skip files and folders that match.",
)
@json_option("Print one JSON document.")
def scan_command(paths: tuple[str, ...], *, globs: tuple[str, ...], as_json: bool) -> None:
    """Search files and folders (- is standard input) for API keys.

    Finds text in the form of a key with a valid checksum in text, UTF-16 and binary files. Works
    offline, without settings. Skips folders named .git, symbolic links in folders, and lines with
    tenantry:allow. A glob without / matches names at any depth, one with / matches paths below
    PATH. Exits with 1 if a key is found or a file is unreadable, else with 0.

    \b
      tenantry keys scan src .env --exclude node_modules
      git diff | tenantry keys scan -
    """
    report = ScanReport()
    for path in paths:
        for file in list_files(path, globs, report.add_error):
            _scan_file(file, report)
    _print(report, as_json=as_json)
    raise SystemExit(1 if report.keys or report.unreadable else 0)


def _print(report: ScanReport, *, as_json: bool) -> None:
    document = json.dumps(msgspec.to_builtins(report), indent=2)
    for line in [document] if as_json else map(_key_line, report.keys):
        click.echo(line)
    for one in report.unreadable:
        say(f"{one.path}: cannot be read: {one.reason}")
    say(_summary(report))


def _key_line(key: KeyPlace) -> str:
    return f"{key.path}:{key.line}:{key.column}: {key.start}...{key.last4}"


def _scan_file(path: str, report: ScanReport) -> None:
    try:
        with click.open_file(path, "rb") as stream:
            scan_stream(stream, path, report)
    except OSError as error:
        report.add_error(OSError(error.errno, error.strerror, path))


def _summary(report: ScanReport) -> str:
    scanned = f"{counted(report.files, 'file')}, {report.bytes / 1e6:,.1f} MB"
    if not report.keys:
        return f"No API key in {scanned}."
    files = {key.path for key in report.keys}
    found = f"{counted(len(report.keys), 'API key')} in {counted(len(files), 'file')}"
    return f"{found} ({scanned} looked through).\n{_ADVICE}"
