"""``tenantry keys scan``: find API keys in files, folders and standard input."""

import json
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, Final

import click

from tenantry.cli.output import counted, printable
from tenantry.domain.api_keys import is_well_formed, shown_parts

_ALLOW_REACH: Final = 4096  # bytes before and after the start of a key
# UTF-16 has a zero byte between two characters. The lookahead finds a key that begins inside a
# lookalike.
_FORM: Final = re.compile(
    rb"s\0?v\0?c\0?_\0?(?:l\0?i\0?v\0?e|t\0?e\0?s\0?t)\0?_(?=((?:\0?[0-9A-Za-z]){49}))"
)
_LINE: Final = "{path}:{line}:{column}: {start}...{last4}"
_ADVICE: Final = """\
Each has a valid checksum: it is or was a key. Report it to revoke it at once and to notify its owner:
  curl -H 'Content-Type: application/json' --data @- BASE_URL/api/v1/api-keys/report-leak
and type {"secret": "the whole key"}, Return and Ctrl-D. Then remove it from the file and from the history.
If it belongs there, such as a test vector, write tenantry:allow on the same line."""


def scan_stream(file: IO[bytes], path: str, report: dict[str, Any]) -> None:
    """Add every key with a valid checksum; lines and columns (in bytes) count from 1."""
    line = 1
    report["files"] += 1
    while block := file.read(1024 * 1024) + file.readline():  # whole lines: no key is cut in two
        line_start = counted_to = 0
        # quick, mostly no
        for found in _FORM.finditer(block) if b"svc_" in block or b"s\0v\0c" in block else ():
            secret, offset = (found[0] + found[1]).replace(b"\0", b""), found.start()
            line += block.count(b"\n", counted_to, offset)
            line_start = max(line_start, block.rfind(b"\n", counted_to, offset) + 1)
            counted_to = offset
            nearby = block[
                max(line_start, offset - _ALLOW_REACH) : offset + _ALLOW_REACH
            ].partition(b"\n")[0]
            if is_well_formed(secret) and b"tenantry:allow" not in nearby.replace(b"\0", b""):
                place = {"path": printable(path), "line": line, "column": offset - line_start + 1}
                start, last4 = shown_parts(secret.decode())
                report["keys"].append(place | {"start": start, "last4": last4})
        line += block.count(b"\n", counted_to)
        report["bytes"] += len(block)


def list_files(path: str, globs: tuple[str, ...], errors: list[OSError]) -> Iterator[str]:
    """List the regular files below a folder, in order; any other path is listed as it is."""
    if not Path(path).is_dir():
        yield from [] if _is_excluded(os.path.normpath(path), globs) else [path]
        return
    for folder, folders, names in os.walk(path, onerror=errors.append):
        prefix = folder.rstrip("/") + "/"
        below = prefix.removeprefix(path).lstrip("/")
        folders[:] = sorted(
            name for name in folders if name != ".git" and not _is_excluded(below + name, globs)
        )
        files = (prefix + name for name in sorted(names) if not _is_excluded(below + name, globs))
        yield from (file for file in files if Path(file).is_file() and not Path(file).is_symlink())


def _is_excluded(path: str, globs: tuple[str, ...]) -> bool:
    name = path.rpartition("/")[2]
    return any(
        fnmatchcase(path if "/" in glob.rstrip("/") else name, glob.strip("/")) for glob in globs
    )


@click.command("scan")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--exclude", "globs", metavar="GLOB", multiple=True, help="Skip files and folders that match."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
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
    errors: list[OSError] = []
    report: dict[str, Any] = {"keys": [], "unreadable": [], "files": 0, "bytes": 0}
    for file in (file for path in paths for file in list_files(path, globs, errors)):
        try:
            with click.open_file(file, "rb") as stream:
                scan_stream(stream, file, report)
        except OSError as error:
            errors.append(OSError(error.errno, error.strerror, file))
    report["unreadable"] = [
        {"path": printable(error.filename), "reason": error.strerror} for error in errors
    ]
    keys = report["keys"]
    for line in [json.dumps(report, indent=2)] if as_json else map(_LINE.format_map, keys):
        click.echo(line)
    for one in report["unreadable"]:
        click.echo(f"{one['path']}: cannot be read: {one['reason']}", err=True)
    scanned = f"{counted(report['files'], 'file')}, {report['bytes'] / 1e6:,.1f} MB"
    found = (
        f"{counted(len(keys), 'API key')} in {counted(len({key['path'] for key in keys}), 'file')}"
    )
    click.echo(
        f"{found} ({scanned} looked through).\n{_ADVICE}" if keys else f"No API key in {scanned}.",
        err=True,
    )
    raise SystemExit(1 if keys or errors else 0)
